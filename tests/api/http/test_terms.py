"""Requests that say what was said before are taken by its terms: answered and refused as if all was checked anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api.plane import Plane
from stretto.live.state import State
from tests.api.serving import INFER, PINNED, Reply, Running, Wire, binary_body, images, json_body, message, values_of

LENGTH = "Inference_Header_Content_Length"
OTHER = PINNED.replace("fashion", "mnist")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The terms that requests were taken by."""
    found: list[Any] = []
    begin_by = Plane.begin_by

    def noting(self: Plane, terms: Any, *given: Any) -> Any:
        found.append(terms)
        return begin_by(self, terms, *given)

    monkeypatch.setattr(Plane, "begin_by", noting)
    yield found


def whole(array: np.ndarray, is_binary: bool, path: str = PINNED, **said: Any) -> bytes:
    if not is_binary:
        return message("POST", path, json_body(array, **said))
    body, length = binary_body(array, **said)
    return message("POST", path, body, **{LENGTH: length})


def replies(wire: Wire, data: bytes, count: int) -> list[Reply]:
    found = []
    for _ in range(count):
        wire.send(data)
        found.append(wire.reply())
    return found


def content_of(reply: Reply) -> dict[str, Any]:
    """Of an answer, but for times and values."""
    assert reply.status == 200, reply.body
    content: dict[str, Any] = json.loads(reply.body[: int(reply.headers.get(LENGTH.replace("_", "-").lower(), 10**9))])
    for name in ("queue_ms", "run_ms", "slack_ms"):
        assert isinstance(content["parameters"].pop(name), float)
    for output in content["outputs"]:
        output.pop("data", None)
    return content


@pytest.mark.parametrize("outputs", [None, [{"name": "probabilities", "parameters": {"binary_data": True}}]])
@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_all_are_answered_alike(
    server: Running, taken: list[Any], is_binary: bool, outputs: list[Any] | None, rows: int
) -> None:
    said = {"outputs": outputs, "priority": 2 + rows, "min_accuracy": 0.5}
    path = INFER if rows == 1 else PINNED
    with server.wire() as wire:
        values_of(server.ask("POST", path, json_body(images(rows))))  # the address is known from now on
        taken.clear()
        for seed in range(4):
            data = whole(images(rows, seed=seed), is_binary, path, **said)
            first, *others = replies(wire, data, 4)
            assert content_of(first)["outputs"][0]["shape"][0] == rows
            for reply in others:
                assert set(reply.headers) == set(first.headers)
                assert reply.headers["content-type"] == first.headers["content-type"]
                if path == PINNED:  # else another variant may answer
                    assert content_of(reply) == content_of(first)
                    np.testing.assert_allclose(values_of(reply), values_of(first), rtol=1e-4, atol=1e-6)
    assert len(taken) >= 12
    assert all((terms.priority, terms.min_accuracy) == (2 + rows, 0.5) for terms in taken)


@pytest.mark.parametrize("is_binary", [True, False])
def test_values_are_checked_each_time(server: Running, taken: list[Any], is_binary: bool) -> None:
    good, bad = images(), images()
    bad[0, 0, 3, 4] = 7.0
    with server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(good, is_binary), 3)} == {200}
        taken.clear()
        refused = server.plane.refused.get("bad_request", 0)
        for reply in replies(wire, whole(bad, is_binary), 2):
            assert (reply.status, reply.reason) == (400, "bad_request") and "between 0 and 1" in reply.content["error"]
        assert len(taken) == 2 and server.plane.refused["bad_request"] == refused + 2
        assert wire.ask("POST", PINNED, json_body(good, id="after")).content["id"] == "after"


def test_fewer_or_more_bytes_than_was_said(server: Running, taken: list[Any]) -> None:
    body, length = binary_body(images())
    with server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(images(), True), 3)} == {200}
        taken.clear()
        for wrong in (body[:-4], body + b"1234", body[: int(length)]):
            for reply in replies(wire, message("POST", PINNED, wrong, **{LENGTH: length}), 3):
                assert reply.status == 400 and "the raw tensors have" in reply.content["error"]
    assert not taken


def test_each_application_has_its_own_terms(server: Running, taken: list[Any]) -> None:
    """The same bytes may be said to two that take the same tensors."""
    with server.wire() as wire:
        for _ in range(4):
            for path, name in ((PINNED, "fashion"), (OTHER, "mnist")):
                wire.send(whole(images(), True, path))
                assert content_of(wire.reply())["model_name"] == name
    assert {terms.files.name for terms in taken} == {"fashion", "mnist"}


@pytest.mark.parametrize(
    "said",
    [
        {"id": "one"},
        {"waited_ms": 1.0},
        {"outputs": [{"name": "probabilities", "parameters": {"classification": 2}}]},
    ],
)
def test_what_is_of_one_request_alone_is_looked_at_each_time(
    server: Running, taken: list[Any], said: dict[str, Any]
) -> None:
    with server.wire() as wire:
        for reply in replies(wire, message("POST", PINNED, json_body(images(), **said)), 4):
            assert reply.status == 200
            assert "id" not in said or reply.content["id"] == "one"
            assert "outputs" not in said or len(reply.content["outputs"][0]["data"]) == 2
    assert not taken


def test_deadlines_count_for_each(server: Running, taken: list[Any]) -> None:
    with server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(images(), True, deadline_ms=0.001), 4)} == {412}
    assert len(taken) == 3 and all(terms.slack_ns == 1000 for terms in taken)


def test_compressed_answers(server: Running, taken: list[Any]) -> None:
    """Only where they are large."""
    body, length = binary_body(images(32))
    data = message("POST", PINNED, body, Accept_Encoding="gzip", **{LENGTH: length})
    with server.wire() as wire:
        for reply in replies(wire, data, 4):
            assert reply.headers["content-encoding"] == "gzip" and reply.status == 200
    assert len(taken) >= 1


def test_clients_with_a_name_and_a_server_that_leaves(repository: Path, taken: list[Any]) -> None:
    with Running(repository) as server, server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(images(), True, client_id="camera"), 4)} == {200}
        assert not taken
        assert {reply.status for reply in replies(wire, whole(images(), True), 3)} == {200}
        server.call(lambda: setattr(server.service, "state", State.DRAINING))
        reply = replies(wire, whole(images(), True), 1)[0]
        assert (reply.status, reply.reason) == (503, "unavailable") and reply.headers["connection"] == "close"
        server.call(lambda: setattr(server.service, "state", State.SERVING))
    assert len(taken) >= 2


def test_terms_end_with_the_files_that_they_were_checked_by(repository: Path, taken: list[Any]) -> None:
    with Running(repository) as server, server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(images(), True), 3)} == {200}
        before = taken[-1]
        taken.clear()

        def changed() -> None:
            files = server.service.files["fashion"]
            server.service.files = {**server.service.files, "fashion": type(files)(**vars(files))}

        server.call(changed)
        assert {reply.status for reply in replies(wire, whole(images(), True), 3)} == {200}
        assert taken and all(terms is not before and terms.files is not before.files for terms in taken)


def test_a_client_that_leaves_while_it_waits(server: Running, taken: list[Any]) -> None:
    with server.wire() as wire:
        assert {reply.status for reply in replies(wire, whole(images(), True), 3)} == {200}
    with server.gate, server.wire() as wire:
        wire.send(whole(images(), True))
        server.wait_for_queries(1)
        wire.socket.close()
        server.wait_until(lambda: server.plane.open_requests == 0, "it is withdrawn")
    assert taken
