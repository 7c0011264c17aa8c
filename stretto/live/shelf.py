"""What a worker holds and runs: loaded models by key. Used by a thread, or alone in a worker process.

A query that its model fails on is found and left out, so that the rest of its batch is answered.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stretto.backends.adapt import Adapter
from stretto.backends.failure import run_batch
from stretto.backends.load import load_model
from stretto.backends.model import Array, BackendError, BatchFailure, Model, Overlapping, Started
from stretto.backends.source import ModelSource

NO_ANSWER = "the model could not answer this query"
MOST_AT_FAULT = 3  # queries of one batch that are looked for
NOT_LOADED = "the model is not loaded"
NOT_A_NUMBER = "the model's answer holds NaN, of which no class is the largest"
NO_TENSORS = "its tensors did not reach the worker in time"


@dataclass(frozen=True)
class ModelSpec:
    """A model to hold: plain data. `key` names it: the same key is the same file, source and shapes.

    Where queries may have several shapes, `input_shapes` are all of them, and `input_shape` the largest.
    """

    key: str
    source: ModelSource
    input: str
    input_dtype: str
    input_shape: tuple[int, ...]  # as clients send it
    output: str
    output_dtype: str
    output_shape: tuple[int, ...]
    max_batch: int
    input_shapes: tuple[tuple[int, ...], ...] = ()
    has_classes: bool = False  # its answers have one number per class, of which the largest is looked for

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """All that a query may have."""
        return self.input_shapes or (self.input_shape,)

    @cached_property
    def input_bytes(self) -> int:
        """Of one query, the largest."""
        return np.dtype(self.input_dtype).itemsize * math.prod(self.input_shape)

    @cached_property
    def output_type(self) -> np.dtype[Any]:
        return np.dtype(self.output_dtype)

    @cached_property
    def output_bytes(self) -> int:
        return self.output_type.itemsize * math.prod(self.output_shape)


@dataclass(slots=True)
class Report:
    """How a batch ended. `answers` row by row, the caller's own; None where none of its queries has one.

    `failures` are by position, and their rows mean nothing. Times are in the worker's own measure, and set by it.
    """

    answers: Array | None
    failures: dict[int, str] = field(default_factory=dict)
    started_ns: int = 0
    ended_ns: int = 0


@dataclass(frozen=True)
class Begun:
    """A batch that computes while others may be started."""

    started: Started
    spec: ModelSpec
    count: int

    def is_done(self) -> bool:
        return self.started.is_done()

    def report(self) -> Report:
        """Waits for its end."""
        return report_of(self.spec, self.started.answers()[self.spec.output], self.count, self.count)


@dataclass
class _Held:
    spec: ModelSpec
    model: Model
    adapter: Adapter | None
    fixed: int | None
    overlapping: Overlapping | None


class Shelf:
    """Not for use from two threads at once, except `load`, which touches nothing that runs."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._unloads: dict[str, int] = {}  # how often each was told to go
        self._changing = threading.Lock()

    def unloads(self, key: str) -> int:
        """For `load` in another thread: how often it was told to go before it was told to come."""
        return self._unloads.get(key, 0)

    def load(self, spec: ModelSpec, unloads: int | None = None) -> bool:
        """BackendError where it cannot be; a key that is there already is left as it is. False: it was told to go
        while it came, and is gone.
        """
        if unloads is None:
            unloads = self.unloads(spec.key)
        if spec.key not in self._held:
            loaded = self._loaded(spec)
            with self._changing:
                is_wanted = self.unloads(spec.key) == unloads
                if is_wanted and self._held.setdefault(spec.key, loaded) is loaded:
                    return True
            loaded.model.unload()  # another load was quicker, or nobody wants it
        return spec.key in self._held

    @staticmethod
    def _loaded(spec: ModelSpec) -> _Held:
        takes = spec.source.inputs[0].shape if spec.source.inputs else spec.input_shape
        target = tuple(size or 1 for size in takes)
        shapes = spec.shapes
        adapter = None if shapes == (target,) else Adapter(shapes, target)
        model = load_model(spec.source)
        try:
            fixed = model.fixed_batch
            model.prepare((fixed,) if fixed is not None else (spec.max_batch, 1))
        except BackendError:
            model.unload()
            raise
        overlapping = model if isinstance(model, Overlapping) and model.overlaps and fixed is None else None
        return _Held(spec, model, adapter, fixed, overlapping)

    def unload(self, key: str) -> None:
        """Also one that is being loaded in another thread: that is not kept."""
        with self._changing:
            self._unloads[key] = self.unloads(key) + 1
            held = self._held.pop(key, None)
        if held is not None:
            held.model.unload()

    def clear(self) -> None:
        for key in list(self._held):
            self.unload(key)

    def overlaps(self, key: str) -> bool:
        """Whether the next batch may begin before one of this model has ended."""
        held = self._held.get(key)
        return held is not None and held.overlapping is not None

    def begin(self, key: str, parts: Sequence[Array], slot: int, is_steady: bool = True) -> Begun:
        """Starts a batch of a model that overlaps. `is_steady`: parts stay as they are until it is done, in memory that
        the device may read; else they are copied now.
        """
        held = self._held[key]
        assert held.overlapping is not None
        count = sum(map(len, parts))
        if not is_steady or held.adapter is not None:
            room = held.overlapping.slot_buffers(slot, count)[held.spec.input]
            gather(parts, held.adapter, room)
            parts = (room,)
        return Begun(held.overlapping.launch(slot, {held.spec.input: parts}), held.spec, count)

    def run(self, key: str, parts: Sequence[Array]) -> Report:
        """Answers to the queries in `parts`, each an array of one or more rows of one of the model's input shapes."""
        held = self._held.get(key)
        count = sum(map(len, parts))
        if held is None:
            return failed(count, NOT_LOADED)
        rows = held.fixed or count
        if count > rows:
            return failed(count, f"the model takes batches of exactly {held.fixed}")
        gathered = held.model.buffers(rows)
        into = gathered[held.spec.input]
        gather(parts, held.adapter, into)
        if count < rows:
            into[count:] = 0
        try:
            outputs = run_batch(held.model, gathered)
            return report_of(held.spec, outputs[held.spec.output], rows, count)
        except BatchFailure as failure:
            again = np.empty_like(into[:count])  # what was gathered is lost by the search for the query at fault
            gather(parts, held.adapter, again)
            return self._without(held, again, failure)
        except BackendError as error:
            return failed(count, str(error))

    def _without(self, held: _Held, rows: Array, failure: BatchFailure) -> Report:
        """The queries at fault are taken out one by one until the rest is answered. A model that fails on more of them
        is itself at fault: to look on would take the time in which another can answer.
        """
        count = len(rows)
        left = list(range(count))
        failures: dict[int, str] = {}
        while failure.position is not None and held.fixed is None and len(failures) < MOST_AT_FAULT:
            failures[left.pop(failure.position)] = failure.reason
            if not left:
                return Report(None, failures)
            try:
                output: Any = run_batch(held.model, {held.spec.input: np.ascontiguousarray(rows[left])})
            except BatchFailure as again:
                failure = again
                continue
            some = report_of(held.spec, output[held.spec.output], len(left), len(left))
            failures |= {left[position]: reason for position, reason in some.failures.items()}
            if some.answers is None:
                return Report(None, failures)
            answers = np.zeros((count, *some.answers.shape[1:]), some.answers.dtype)
            answers[left] = some.answers
            return Report(answers, failures)
        return Report(None, failures | dict.fromkeys(left, failure.reason))


def report_of(spec: ModelSpec, output: Array, rows: int, count: int) -> Report:
    """Of a batch of so many queries that was run as so many rows. What is no answer to a query is a failure: numbers of
    another shape or type than is declared, and NaN where the largest number is looked for.
    """
    if output.shape != (rows, *spec.output_shape):
        shape, declared = list(output.shape), [rows, *spec.output_shape]
        return failed(count, f"the model's answers have shape {shape}, but its application declares {declared}")
    if output.dtype != spec.output_type and not np.can_cast(output.dtype, spec.output_type, "same_kind"):
        return failed(count, f"the model answers {output.dtype}, but its application declares {spec.output_dtype}")
    answers = np.array(output[:count])
    if spec.has_classes and answers.dtype.kind == "f" and math.isnan(np.vdot(answers, answers)):  # quicker than min
        wrong = np.flatnonzero(np.isnan(answers.reshape(count, -1)).any(axis=1)).tolist()
        return Report(answers if len(wrong) < count else None, dict.fromkeys(wrong, NOT_A_NUMBER))
    return Report(answers)


def gather(parts: Sequence[Array], adapter: Adapter | None, into: Array) -> None:
    """The queries of all parts, in order and as the model takes them. Those of one shape are resized together."""
    if adapter is None:
        np.concatenate(parts, out=into[: sum(map(len, parts))], casting="unsafe")
    elif len(parts) == 1:
        into[: len(parts[0])] = adapter(parts[0])
    else:
        places: dict[tuple[int, ...], list[tuple[int, Array]]] = {}
        first = 0
        for part in parts:
            places.setdefault(part.shape[1:], []).append((first, part))
            first += len(part)
        for alike in places.values():
            made = adapter(np.concatenate([part for _, part in alike]))
            taken = 0
            for first, part in alike:
                into[first : first + len(part)] = made[taken : taken + len(part)]
                taken += len(part)


def failed(count: int, reason: str) -> Report:
    """None of so many queries has an answer, for one reason."""
    return Report(None, dict.fromkeys(range(count), reason))
