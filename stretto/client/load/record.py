"""Writes down how each request ended, while the load runs: plain arrays, as each request may cost microseconds only."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.answer import Response, answer_of
from stretto.client.errors import StrettoClientError, kind_of
from stretto.client.json_text import json_value
from stretto.client.load.result import OUTCOME_OF, PENDING, LoadOutcome
from stretto.client.tensors import NUMPY_OF

MAX_VARIANTS = 1000  # further names count as the last one
ON_TIME, LATE, BAD_ANSWER = int(LoadOutcome.ON_TIME), int(LoadOutcome.LATE), int(LoadOutcome.BAD_ANSWER)


class Record:
    """`scheduled_ns` and the other arrays have one entry per request of the load."""

    def __init__(
        self,
        times_ns: NDArray[np.int64],
        labels: list[tuple[int, ...]] | None,
        deadline_ns: int | None,
        variants: tuple[str, ...] = (),
    ):
        """`variants` are those that the server names, from fast to accurate; others that answer come after them."""
        count = len(times_ns)
        self.scheduled_ns = array("q", times_ns.tobytes())
        self.latency_ns = array("q", bytes(8 * count))
        self.lag_ns = array("q", [-1]) * count
        self.outcome = array("B", [PENDING]) * count
        self.variant = array("h", [-1]) * count
        self.correct = array("h", [-1]) * count
        self.batch = array("i", bytes(4 * count))
        self.variants = {name: number for number, name in enumerate([*dict.fromkeys(variants)][:MAX_VARIANTS])}
        self.ended = self.on_time = self.late = self.correct_on_time = 0
        self._labels = labels
        self._deadline_ns = deadline_ns

    def end(self, number: int, now_ns: int, outcome: int) -> None:
        """Request `number` ended at `now_ns`, both counted from the start of the load."""
        self.latency_ns[number] = now_ns - self.scheduled_ns[number]
        self.outcome[number] = outcome
        self.ended += 1

    def answered(self, number: int, now_ns: int, response: Response, encoded: int) -> None:
        """`encoded` is which of the encoded requests it was."""
        try:
            is_answer = response.status == 200
            outcome = self._answer(number, now_ns, response, encoded) if is_answer else _refusal(response)
        except (StrettoClientError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
            outcome = BAD_ANSWER  # whatever was wrong with it: there are many ways to answer nonsense
        self.end(number, now_ns, outcome)

    def _answer(self, number: int, now_ns: int, response: Response, encoded: int) -> int:
        body = response.body
        json_length = response.json_length
        content = json_value(body if json_length is None else memoryview(body)[:json_length])
        parameters = content.get("parameters") or {}
        right = -1
        if self._labels is not None:
            right = self._right_rows(content["outputs"][0], response, self._labels[encoded])
        if self._deadline_ns is None:
            is_late = parameters.get("outcome") == "late"
        else:
            is_late = now_ns - self.scheduled_ns[number] > self._deadline_ns
        self.batch[number] = parameters.get("batch_size", 0)
        self.variant[number] = self._variant(str(parameters.get("variant") or content.get("model_version") or "?"))
        self.correct[number] = right
        if is_late:
            self.late += 1
            return LATE
        self.on_time += 1
        self.correct_on_time += max(right, 0)
        return ON_TIME

    def _right_rows(self, output: dict[str, Any], response: Response, truth: tuple[int, ...]) -> int:
        """How many rows have their largest value at the place of their label, in the first output."""
        json_length = response.json_length
        if json_length is None:
            scores = next(iter(answer_of(response).outputs.values())).ravel()
        else:
            size = output["parameters"]["binary_data_size"]
            dtype = NUMPY_OF[output["datatype"]]
            scores = np.frombuffer(response.body, dtype, size // dtype.itemsize, json_length)
        if len(truth) == 1:
            return int(int(scores.argmax()) == truth[0])
        predictions = scores.reshape(len(truth), -1).argmax(axis=1).tolist()
        return sum(map(int.__eq__, predictions, truth))

    def _variant(self, name: str) -> int:
        number = self.variants.get(name)
        if number is None:
            if len(self.variants) >= MAX_VARIANTS:
                return MAX_VARIANTS - 1
            number = self.variants[name] = len(self.variants)
        return number


def _refusal(response: Response) -> int:
    try:
        content = json_value(response.body)
    except ValueError:
        content = None
    return int(OUTCOME_OF.get(kind_of(response.status, content).reason, LoadOutcome.BAD_ANSWER))
