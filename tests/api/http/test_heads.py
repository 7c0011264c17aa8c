"""Heads that came before are not parsed again: their requests are answered as those that are, and refused as those."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api.http.app import App
from tests.api.serving import INFER, PINNED, Running, binary_body, images, json_body, message, values_of

ONE = json_body(images(), id="one")


def whole(seed: int, rows: int = 1) -> bytes:
    """Requests whose heads are all the same."""
    body, length = binary_body(images(rows, seed=seed))
    return message("POST", PINNED, body, Inference_Header_Content_Length=length)


def heads_of(server: Running) -> dict[bytes, Any]:
    connection = next(iter(server.listeners._http[0][1].connections))
    found: dict[bytes, Any] = connection.api._heads
    return found


@pytest.fixture(autouse=True)
def known(server: Running) -> None:
    assert server.ask("POST", PINNED, ONE).status == 200
    for rows in (1, 32):
        with server.wire() as wire:
            wire.send(whole(7, rows))
            assert wire.reply().status == 200
            head = whole(7, rows).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            assert server.call(lambda head=head: head in heads_of(server))


@pytest.mark.parametrize("rows", [1, 32])
def test_each_request_has_its_own_body(server: Running, rows: int) -> None:
    with server.wire() as wire:
        for seed in range(4):
            expected = values_of(server.ask("POST", PINNED, json_body(images(rows, seed=seed))))
            wire.send(whole(seed, rows))
            np.testing.assert_allclose(values_of(wire.reply()), expected, rtol=1e-4, atol=1e-6)


def test_what_is_served_is_known_by_its_address_before_anybody_asked_it(server: Running) -> None:
    """Where thousands a second began together, all that came before the first answer took the long way."""
    app = App(server.listeners.plane)
    served, pinned = b"/v2/models/fashion/infer", b"/v2/models/fashion/versions/linear/infer"
    others = [
        *(b"/v2/models/nobody/infer", b"/v2/models/fashion/versions/nobody/infer", b"/v2/models/infer", b"/infer"),
        *(b"/v2/models/fashion/versions//infer", b"/v2/models/f%61shion/infer", served + b"/", served + b"?x", b"\xff"),
    ]
    found = server.call(lambda: {url: app.known_infer(url) for url in (served, pinned, *others)})
    assert found == {served: ("fashion", ""), pinned: ("fashion", "linear")} | dict.fromkeys(others)
    assert app._infers.keys() == {served, pinned}, "only these are remembered"


@pytest.mark.parametrize("rows", [1, 32])
def test_in_any_pieces_and_with_others_behind(server: Running, rows: int) -> None:
    expected = values_of(server.ask("POST", PINNED, json_body(images(rows, seed=3))))
    data = whole(3, rows)
    end = data.find(b"\r\n\r\n") + 4
    for cut in (1, end - 2, end, end + 1, len(data) // 2, len(data) - 1):
        with server.wire() as wire:
            wire.send(data[:cut])
            server.call(lambda: None)
            wire.send(data[cut:] + data + message("GET", "/v2") + data)
            for _ in range(2):
                np.testing.assert_allclose(values_of(wire.reply()), expected, rtol=1e-4, atol=1e-6)
            assert wire.reply().content["name"] == "stretto"
            np.testing.assert_allclose(values_of(wire.reply()), expected, rtol=1e-4, atol=1e-6)


def test_the_end_of_a_head_alone_is_no_head(server: Running) -> None:
    """A head that came in two pieces must not be remembered by its second one."""
    data = message("POST", PINNED, ONE, X="pieces")
    with server.wire() as wire:
        wire.send(data[:3])
        server.call(lambda: None)
        wire.send(data[3:])
        assert wire.reply().content["id"] == "one"
        assert server.call(lambda: not any(head.startswith(b"T /") for head in heads_of(server)))
    with server.wire() as wire:
        wire.send(data[3:])
        assert wire.reply().status == 400


@pytest.mark.parametrize("before", [b"\r\n\r\n", b"\r\n\r\n" * 5000, b"\r\n\n\r\n\r\n"])
def test_empty_lines_before_a_request_are_no_head(server: Running, before: bytes) -> None:
    """Else whoever sends empty lines would have a part of it taken for the body of another's request."""
    with server.wire() as wire:
        wire.send(before + message("POST", PINNED, ONE))
        assert wire.reply().content["id"] == "one"
        assert server.call(lambda: all(head.startswith(b"POST ") for head in heads_of(server)))
    with server.wire() as wire:
        wire.send(before + message("POST", PINNED, ONE.replace(b"one", b"two")))
        assert wire.reply().content["id"] == "two"


def test_a_second_request_in_one_piece_does_not_take_the_head_of_the_first(server: Running) -> None:
    assert server.ask("POST", INFER, ONE).status == 200  # the address is known from now on
    first = message("POST", INFER, ONE, X="first")
    with server.wire() as wire:
        wire.send(first + message("POST", PINNED, ONE, X="second"))
        assert [wire.reply().status, wire.reply().status] == [200, 200]
        found = server.call(lambda: dict(heads_of(server)))
    assert found[first.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"].version == ""


def test_a_client_that_leaves_within_a_large_body(server: Running) -> None:
    for end in (socket.SHUT_WR, socket.SHUT_RDWR):
        with server.wire() as wire:
            wire.send(whole(1, 32)[:90_000])
            wire.socket.shutdown(end)
            assert wire.is_closed()
    server.wait_until(lambda: server.plane.budget.used == 0, "all is let go of")


def test_tokens_are_looked_at_every_time(repository: Path) -> None:
    with Running(repository, token="right") as server:
        data = message("POST", PINNED, ONE, Authorization="Bearer right")
        with server.wire() as wire:
            for _ in range(3):
                wire.send(data)
                assert wire.reply().content["id"] == "one"
            server.call(lambda: server.listeners._inference.replace(("another",)))
            wire.send(data)
            assert wire.reply().status == 401
            server.call(lambda: server.listeners._inference.replace(("right",)))
            wire.send(data)
            assert wire.reply().content["id"] == "one"


def test_an_application_that_is_gone_is_not_served_by_its_old_head(repository: Path) -> None:
    with Running(repository) as server, server.wire() as wire:
        for _ in range(3):
            wire.send(message("POST", PINNED, ONE))
            assert wire.reply().status == 200
        files = server.call(lambda: server.service.files.pop("fashion"))
        wire.send(message("POST", PINNED, ONE))
        assert wire.reply().status == 503
        server.call(lambda: server.service.files.update(fashion=files))
        wire.send(message("POST", PINNED, ONE))
        assert wire.reply().status == 200


@pytest.mark.parametrize("path", [PINNED, f"{PINNED}?as=another"])
def test_a_length_with_thousands_of_zeros_is_no_sound_request(server: Running, path: str) -> None:
    length = f"Content-Length: {len(ONE)}".encode()
    with server.wire() as wire:
        wire.send(message("POST", path, ONE).replace(length, length.replace(b": ", b": " + b"0" * 4400)))
        assert wire.reply().status == 400


def test_an_old_client_that_asks_for_another_protocol_has_its_connection_ended(server: Running) -> None:
    with server.wire() as wire:
        wire.send(b"GET /v2 HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
        [reply] = wire.replies()
        assert reply.status == 200 and reply.headers["connection"] == "close"
