"""True labels that come later, by the ids of requests: counted once, beside what was promised, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api import feedback as module
from stretto.api.feedback import Feedback
from stretto.live.requests import Request
from stretto.repository.tensors import OutputKind, OutputTensor
from tests.api.serving import INFER, PINNED, Reply, Running, images, json_body, repository_of, values_of

ADDRESS = "/v2/models/fashion/feedback"
NUMBERS = count()


def new_id() -> str:
    return f"test-{next(NUMBERS)}"


def answered(server: Running, rows: int = 1, path: str = PINNED) -> tuple[str, list[int]]:
    """The id of a request, and the classes that it got."""
    identity = new_id()
    reply = server.ask("POST", path, json_body(images(rows), id=identity))
    assert reply.content["id"] == identity
    return identity, values_of(reply).argmax(axis=1).tolist()


def send(server: Running, *entries: Any) -> Reply:
    return server.ask("POST", ADDRESS, json.dumps({"feedback": entries}).encode())


def counts(server: Running, *entries: Any) -> dict[str, int]:
    reply = send(server, *entries)
    assert reply.status == 200, reply.body
    found: dict[str, int] = reply.content
    return found


def metric(server: Running, name: str, *labels: str) -> float:
    """The value of the one sample with these labels; 0 where there is none."""
    lines = server.ask("GET", "/metrics", name="management").body.decode().splitlines()
    found = [line for line in lines if line.startswith(name + "{") and all(label in line for label in labels)]
    assert len(found) <= 1, found
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


def of_linear(server: Running) -> tuple[float, float, float]:
    names = 'application="fashion"', 'variant="linear"'
    right, wrong = (metric(server, "stretto_feedback_total", *names, f'result="{word}"') for word in ("right", "wrong"))
    return right, wrong, metric(server, "stretto_feedback_expected_total", *names)


def test_what_was_right_is_counted_beside_the_promise(server: Running) -> None:
    before = of_linear(server)
    promised = server.ask("POST", PINNED, json_body(images())).content["parameters"]["expected_accuracy"]
    first, (is_one,) = answered(server)
    second, (is_other,) = answered(server)
    entries = {"id": first, "label": is_one}, {"id": second, "label": (is_other + 1) % 10}
    assert counts(server, *entries) == {"right": 1, "wrong": 1, "unknown": 0, "repeated": 0}
    right, wrong, expected = (now - then for now, then in zip(of_linear(server), before, strict=True))
    assert (right, wrong) == (1, 1) and expected == pytest.approx(2 * promised, abs=1e-6)


def test_each_row_has_its_label(server: Running) -> None:
    identity, classes = answered(server, rows=3)
    labels = [classes[0], (classes[1] + 1) % 10, classes[2]]
    assert counts(server, {"id": identity, "label": labels})["right"] == 2
    identity, classes = answered(server, rows=3)
    reply = send(server, {"id": identity, "label": classes[:2]})
    assert (reply.status, reply.reason) == (400, "bad_request") and b"needs 3" in reply.body
    assert counts(server, {"id": identity, "label": classes})["right"] == 3


def test_a_label_counts_once(server: Running) -> None:
    identity, (found,) = answered(server)
    before = of_linear(server)
    entry = {"id": identity, "label": found}
    assert counts(server, entry, entry) == {"right": 1, "wrong": 0, "unknown": 0, "repeated": 1}
    assert counts(server, entry)["repeated"] == 1
    assert of_linear(server)[0] == before[0] + 1


def test_an_id_that_nobody_had_counts_for_nothing(server: Running) -> None:
    unknown = metric(server, "stretto_feedback_refused_total", 'reason="unknown"')
    assert counts(server, {"id": "nobody", "label": 1})["unknown"] == 1
    other = server.ask("POST", "/v2/models/mnist/feedback", b'{"feedback": [{"id": "nobody", "label": 1}]}')
    assert other.content["unknown"] == 1
    assert metric(server, "stretto_feedback_refused_total", 'reason="unknown"') == unknown + 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"feedback": []}',
        b'{"feedback": {"id": "a", "label": 1}}',
        b'{"feedback": [1]}',
        b'{"feedback": [{"id": "a"}]}',
        b'{"feedback": [{"label": 1}]}',
        b'{"feedback": [{"id": "", "label": 1}]}',
        b'{"feedback": [{"id": 7, "label": 1}]}',
        b'{"feedback": [{"id": "a", "label": 10}]}',
        b'{"feedback": [{"id": "a", "label": -1}]}',
        b'{"feedback": [{"id": "a", "label": 1.5}]}',
        b'{"feedback": [{"id": "a", "label": true}]}',
        b'{"feedback": [{"id": "a", "label": "Bag"}]}',
        b'{"feedback": [{"id": "a", "label": null}]}',
        b'{"feedback": [{"id": "a", "label": [[1], [1, 2]]}]}',
        b'{"feedback": [{"id": "a", "label": 99999999999999999999}]}',
        b'{"feedback": [{"id": "a", "label": ' + 100 * b"[" + b"1" + 100 * b"]" + b"}]}",
        json.dumps({"feedback": 1001 * [{"id": "a", "label": 1}]}).encode(),
    ],
)
def test_what_makes_no_sense_is_refused(server: Running, body: bytes) -> None:
    reply = server.ask("POST", ADDRESS, body)
    assert (reply.status, reply.reason) == (400, "bad_request"), reply.body


def test_a_bad_entry_keeps_the_good_ones_from_counting(server: Running) -> None:
    identity, (found,) = answered(server)
    assert send(server, {"id": identity, "label": found}, {"id": identity, "label": 10}).status == 400
    assert counts(server, {"id": identity, "label": found})["right"] == 1


def test_addresses_and_sizes(server: Running) -> None:
    assert server.ask("GET", ADDRESS).status == 405
    assert server.ask("POST", "/v2/models/nobody/feedback", b"{}").status == 404
    assert server.ask("POST", "/v2/models/fashion/versions/linear/feedback", b"{}").status == 405
    assert server.ask("POST", ADDRESS, b" " * (module.BODY_BYTES + 1)).status == 413


def test_a_request_without_an_id_is_not_remembered(server: Running) -> None:
    before = server.call(lambda: len(server.plane.feedback))
    for _ in range(3):
        assert server.ask("POST", INFER, json_body(images())).status == 200
    assert server.call(lambda: len(server.plane.feedback)) == before


def test_where_the_accuracy_is_not_known_nothing_is_expected(tmp_path: Path) -> None:
    root = repository_of(tmp_path / "models", "fashion")
    metrics = root / "fashion" / "variants" / "linear" / "metrics.json"
    metrics.write_text(json.dumps({"accuracy": 0.9}))  # of which model, nobody says
    with Running(root, only=("linear",), planner="priced") as server:
        identity, (found,) = answered(server)
        assert counts(server, {"id": identity, "label": found})["right"] == 1
        assert of_linear(server) == (1, 0, 0)


# -- what is remembered, without a server ------------------------------------------------------------------------------

CLASSES = OutputTensor("y", "float32", (3,), OutputKind.LOGITS)
VALUES = OutputTensor("y", "float32", (2,), OutputKind.VALUES, tolerance=0.5)


class Files:
    """As much of an application's files as is asked."""

    name = "app"

    def __init__(self, gives: OutputTensor):
        self.output, self.classes = gives, gives.classes


def ended(rows: Sequence[Sequence[float]], *variants: str) -> Request:
    array = np.array(rows, np.float32)
    request = Request("app", array, 0, lambda request: None)
    request.answers, request.variants, request.accuracy_sum = array, variants or ("one",), 0.75 * len(rows)
    return request


def label(feedback: Feedback, gives: OutputTensor, identity: str, label: Any) -> dict[str, int]:
    entries = [{"id": identity, "label": label}]
    return feedback.take(Files(gives), {"feedback": entries})  # type: ignore[arg-type]


def test_memory_is_bounded_by_number() -> None:
    feedback = Feedback(kept=3)
    for number in range(5):
        feedback.keep(str(number), ended([[0, 0, 1]]), CLASSES)
    assert len(feedback) == 3
    found = {number: label(feedback, CLASSES, str(number), 2) for number in range(5)}
    assert [found[number]["unknown"] for number in range(5)] == [1, 1, 0, 0, 0]


def test_memory_is_bounded_by_bytes() -> None:
    feedback = Feedback(kept_bytes=10_000)
    for number in range(100):
        feedback.keep(f"{number:0100}", ended([[0, 1]] * 20), VALUES)
    assert 1 <= len(feedback) <= 10_000 // (20 * 2 * 4 + 100)
    feedback.keep("x" * 10_000, ended([[0, 1]]), VALUES)  # more than all by itself
    assert len(feedback) == 0


def test_a_very_large_answer_is_not_remembered() -> None:
    feedback = Feedback()
    request = ended([[0.0]])
    request.answers = np.zeros((1, module.MOST_NUMBERS + 1), np.float32)
    feedback.keep("a", request, CLASSES)
    assert len(feedback) == 0


def test_a_later_answer_with_the_same_id_takes_its_place() -> None:
    feedback = Feedback()
    feedback.keep("a", ended([[1, 0, 0]]), CLASSES)
    feedback.keep("a", ended([[0, 0, 1]]), CLASSES)
    assert len(feedback) == 1 and label(feedback, CLASSES, "a", 2)["right"] == 1


def test_rows_of_several_variants_are_counted_apart() -> None:
    feedback = Feedback()
    feedback.keep("a", ended([[1, 0, 0], [1, 0, 0]], "one", "two"), CLASSES)
    label(feedback, CLASSES, "a", [0, 1])
    ((key, agreement),) = feedback.agreements.items()
    assert key == ("app", "several") and (agreement.right, agreement.wrong, agreement.expected) == (1, 1, 1.5)


def test_values_are_right_within_the_tolerance() -> None:
    feedback = Feedback()
    feedback.keep("a", ended([[1, 2], [1, 2], [1, np.nan]]), VALUES)
    found = label(feedback, VALUES, "a", [[1.5, 1.5], [1, 2.75], [1, 2]])
    assert (found["right"], found["wrong"]) == (1, 2)
    unsaid = OutputTensor("y", "float32", (2,), OutputKind.VALUES)
    feedback.keep("b", ended([[1, 2]]), unsaid)
    assert len(feedback) == 1
    with pytest.raises(Exception, match="values and no tolerance"):
        label(feedback, unsaid, "b", [1, 2])


def test_answers_of_another_kind_than_now_are_not_known() -> None:
    feedback = Feedback()
    feedback.keep("a", ended([[0, 1]]), VALUES)
    assert label(feedback, CLASSES, "a", 1)["unknown"] == 1
    assert label(feedback, VALUES, "a", [0, 1])["right"] == 1


def test_several_classes_of_one_row_are_right_together() -> None:
    feedback, gives = Feedback(), OutputTensor("y", "float32", (2, 3), OutputKind.LOGITS)
    request = ended([[0.0]])
    request.answers = np.array([[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]]], np.float32)
    feedback.keep("a", request, gives)
    found = label(feedback, gives, "a", [0, 1, 0, 1])
    assert (found["right"], found["wrong"]) == (1, 1)
