"""Runs a module on a GPU: a ladder of batch sizes, each captured once as a CUDA graph, and copies beside the kernels.

Everything is made when the model is prepared: memory, graphs, pinned arrays. A batch is then one copy up (on a stream
of its own where another batch computes), one launch of the graph of the next larger rung, and one copy of the answers
back; the host waits for none of them before the next batch's inputs go up. Rows that lie in several places are copied
from there, one by one. Two batches may be on their way, each with a slot of its own. Graphs of one model share a pool
of memory, and all models of a device share its streams: one batch computes at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from stretto.backends.model import Array, Batch, Parts, TensorSpec, in_one_part
from stretto.backends.pinned import is_pinned
from stretto.backends.progress import prepared
from stretto.backends.rungs import rung_of, rungs

SLOTS = 2  # one batch computes while the next one's inputs go up
WARM_RUNS = 1  # before a capture: what is made at a first run must not be captured
_capture_streams: dict[str, list[Any]] = {}  # by device, those that nobody prepares a model on
WITHOUT = "STRETTO_GPU_WITHOUT"  # to compare: ladder, graphs or overlap, separated by commas


def is_off(feature: str) -> bool:
    return feature in os.environ.get(WITHOUT, "").split(",")


@dataclass(frozen=True)
class Streams:
    """Of one device, for all of its models."""

    up: Any
    compute: Any


@cache
def streams_of(device: Any) -> Streams:
    import torch

    return Streams(torch.cuda.Stream(device), torch.cuda.Stream(device))


@contextmanager
def capture_stream(device: Any) -> Iterator[Any]:
    """To prepare a model on, beside others that are prepared at the same time. It is used again, for cuBLAS keeps
    memory for each stream that it was ever called on: 32 MiB on an H200.
    """
    import torch

    streams = _capture_streams.setdefault(str(device), [])
    try:
        stream = streams.pop()
    except IndexError:
        stream = torch.cuda.Stream(device)
    try:
        yield stream
    finally:
        streams.append(stream)


@dataclass
class _Slot:
    """One batch on its way: pinned arrays at both ends, and where its inputs arrive on the GPU."""

    host: dict[str, Any]
    inputs: dict[str, Array]  # the same memory, as arrays
    arrived: Any
    done: Any
    staged: dict[str, Any] = field(default_factory=dict)
    answers: Any = None  # in the nesting that the module gives them
    rows: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)  # by batch: of its answers, to and from
    given: dict[int, Any] = field(default_factory=dict)  # by batch: `answers` as arrays

    def copy_up(self, name: str, parts: Sequence[Array], into: Any) -> None:
        """The rows of all parts, in order: from where they lie where the GPU can read that, as it can these arrays, or
        else from here.
        """
        import torch

        held, first = self.inputs[name], 0
        for part in parts:
            end = first + len(part)
            if is_pinned(part) or np.may_share_memory(part, held):
                host = torch.from_numpy(part)
            else:
                host = self.host[name][first:end]
                np.copyto(held[first:end], part)
            into[first:end].copy_(host, non_blocking=True)
            first = end


@dataclass(frozen=True)
class Flight:
    """A batch that was launched."""

    slot: _Slot
    batch: int

    def is_done(self) -> bool:
        return bool(self.slot.done.query())

    def answers(self) -> Any:
        """Waits for them: views of pinned memory that the slot's next batch overwrites."""
        slot, batch = self.slot, self.batch
        slot.done.synchronize()
        if batch not in slot.given:
            slot.given[batch] = _mapped(slot.answers, lambda tensor: tensor[:batch].numpy())
        return slot.given[batch]


class GpuRunner:
    """Until it is prepared, and for batches beyond what it was prepared for, kernels are launched one by one."""

    def __init__(
        self,
        module: Any,
        specs: tuple[TensorSpec, ...],
        device: Any,
        capture: bool = True,
        fixed_batch: int | None = None,
    ):
        import torch

        self._torch = torch
        self._module = module
        self._specs = specs
        self._device = device
        self._capture = capture and not is_off("graphs")
        self._has_one_rung = fixed_batch is not None or is_off("ladder")
        self._streams = streams_of(device)
        self._ladder: tuple[int, ...] = ()
        self._inputs: dict[str, Any] = {}  # of the largest batch; smaller graphs read its first rows
        self._slots: list[_Slot] = []
        self._graphs: dict[int, tuple[Any, Any]] = {}  # by rung: the graph, and its answers on the GPU

    @property
    def largest(self) -> int:
        """That it is prepared for."""
        return self._ladder[-1] if self._ladder else 0

    def prepare(self, largest: int) -> None:
        """Memory for batches up to `largest`, and a graph for each rung; the largest first, so that others fit in its
        memory. Other threads may run and prepare other models meanwhile.
        """
        if largest <= self.largest:
            return
        ladder = (largest,) if self._has_one_rung else rungs(largest)
        self._graphs, self._slots, self._ladder = {}, [], ()
        self._inputs = {spec.name: self._on_device(spec, largest) for spec in self._specs}
        slots = [self._slot(largest) for _ in range(SLOTS)]
        with capture_stream(self._device) as stream:
            self._climb(ladder, slots, stream)
        self._ladder, self._slots = ladder, slots
        for place in range(SLOTS):  # the first launches on the streams that serve take longer than any other
            for rung in ladder:
                for is_idle in (True, False):
                    self._launch(place, rung, in_one_part(self.buffers(rung, place)), is_idle).answers()

    def _climb(self, ladder: tuple[int, ...], slots: list[_Slot], stream: Any) -> None:
        """A graph for each rung, or one run where none is captured."""
        torch, pool = self._torch, None
        for number, rung in enumerate(reversed(ladder)):
            prepared(number, len(ladder))
            with torch.cuda.stream(stream):
                for _ in range(WARM_RUNS):
                    answer = self._called(rung)
                stream.synchronize()
                if slots[0].answers is None:
                    for slot in slots:
                        slot.answers = _mapped(answer, lambda t: torch.empty_like(t, device="cpu").pin_memory())
                del answer
                if self._capture:
                    graph = torch.cuda.CUDAGraph()
                    # Without torch.cuda.graph, which would stop the whole device and have Python collect its garbage.
                    graph.capture_begin(*(() if pool is None else (pool,)), capture_error_mode="thread_local")
                    try:
                        answer = self._called(rung)
                    finally:
                        graph.capture_end()
                    pool = pool or graph.pool()
                    self._graphs[rung] = (graph, answer)
                    graph.replay()  # the first one also uploads it
        stream.synchronize()

    def buffers(self, batch: int, slot: int = 0) -> dict[str, Array]:
        """Pinned memory that the GPU reads directly; ordinary memory for a batch that nothing was prepared for."""
        if not 0 < batch <= self.largest:
            return {spec.name: spec.zeros(batch) for spec in self._specs}
        return {name: array[:batch] for name, array in self._slots[slot].inputs.items()}

    def run(self, batch: int, inputs: Batch) -> Any:
        """The answers, in the nesting that the module gives them."""
        if batch > self.largest:
            return self._run_unprepared(inputs)
        return self.launch(0, batch, in_one_part(inputs)).answers()

    def launch(self, number: int, batch: int, inputs: Parts) -> Flight:
        """Starts a batch that is no larger than what was prepared. Its inputs must stay as they are until it ended.

        Where nothing computes, they go straight to where the graphs read them: on a stream of their own they could
        only wait for each other.
        """
        return self._launch(number, batch, inputs, self._streams.compute.query())

    def _launch(self, number: int, batch: int, inputs: Parts, is_idle: bool) -> Flight:
        torch, streams, slot = self._torch, self._streams, self._slots[number]
        rung = rung_of(batch, self._ladder)
        if not is_idle:
            with torch.cuda.stream(streams.up):
                for name, parts in inputs.items():
                    slot.copy_up(name, parts, slot.staged[name])
                slot.arrived.record(streams.up)
        with torch.cuda.stream(streams.compute):
            if is_idle:
                for name, parts in inputs.items():
                    slot.copy_up(name, parts, self._inputs[name])
            else:
                streams.compute.wait_event(slot.arrived)
                for name, tensor in self._inputs.items():
                    tensor[:batch].copy_(slot.staged[name][:batch], non_blocking=True)
            if self._capture:
                graph, answer = self._graphs[rung]
                graph.replay()
            else:
                answer = self._called(rung)
            for host, value in self._rows_of_answers(slot, batch, answer):
                host.copy_(value, non_blocking=True)
            slot.done.record(streams.compute)
        return Flight(slot, batch)

    def _rows_of_answers(self, slot: _Slot, batch: int, answer: Any) -> list[tuple[Any, Any]]:
        """Where a batch's answers are to go, and where they come from. Graphs give them at the same place each time."""
        if batch in slot.rows:
            return slot.rows[batch]
        pairs = zip(_flat(slot.answers), _flat(answer), strict=True)
        rows = [(host[:batch], value[:batch]) for host, value in pairs]
        if self._capture:
            slot.rows[batch] = rows
        return rows

    def _called(self, rung: int) -> Any:
        return self._module(*(tensor[:rung] for tensor in self._inputs.values()))

    def _run_unprepared(self, inputs: Batch) -> Any:
        torch, compute = self._torch, self._streams.compute
        with torch.cuda.stream(compute):
            given = [torch.from_numpy(np.array(inputs[spec.name])).to(self._device) for spec in self._specs]
            answer = _mapped(self._module(*given), lambda tensor: tensor.to("cpu"))
            compute.synchronize()
        return _mapped(answer, lambda tensor: tensor.numpy())

    def _on_device(self, spec: TensorSpec, rows: int) -> Any:
        return self._torch.from_numpy(spec.zeros(rows)).to(self._device)

    def _slot(self, rows: int) -> _Slot:
        torch = self._torch
        host = {spec.name: torch.from_numpy(spec.zeros(rows)).pin_memory() for spec in self._specs}
        staged = {spec.name: self._on_device(spec, rows) for spec in self._specs}
        arrays = {name: tensor.numpy() for name, tensor in host.items()}
        return _Slot(host, arrays, torch.cuda.Event(), torch.cuda.Event(), staged)


def _mapped(answer: Any, change: Any) -> Any:
    if isinstance(answer, Mapping):
        return {name: change(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [change(value) for value in answer]
    return change(answer)


def _flat(answer: Any) -> list[Any]:
    if isinstance(answer, Mapping):
        return list(answer.values())
    return list(answer) if isinstance(answer, list | tuple) else [answer]
