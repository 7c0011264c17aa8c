"""Measures one model as a whole: load time, latency per batch size, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.backends.adapt import Adapter
from stretto.backends.load import load_model
from stretto.backends.model import Array, BackendError, Model
from stretto.backends.source import ModelSource
from stretto.core.errors import ProfileError
from stretto.profiling.clock import NS_PER_S, Clock, SystemClock
from stretto.profiling.latency import BATCHES, LatencyResult, Progress, check_batches, measure_latency
from stretto.profiling.memory import MemoryUse, measure_memory

LOADS = 3
NS_PER_MS = NS_PER_S / 1000


@dataclass(frozen=True)
class Measurement:
    """`load_ms` is the fastest of a few loads, each up to its first answer, with the file in the system's cache; on a
    GPU of one load up to where every batch size is ready.
    """

    latency: LatencyResult
    memory: MemoryUse
    load_ms: float


def measure_model(
    source: ModelSource,
    samples: Mapping[str, Array] | None = None,
    batches: Sequence[int] = BATCHES,
    *,
    budget_s: float = 20.0,
    tight: float = 0.02,
    clock: Clock | None = None,
    progress: Progress | None = None,
    adapter: Adapter | None = None,
    memory: MemoryUse | None = None,
) -> Measurement:
    """`samples` are real queries by input, repeated as needed; without them the model runs on random numbers.
    `memory` is what it takes, where that is known already.

    With an `adapter` they are as clients send them, and making them the model's size is part of its latency.
    """
    clock = SystemClock() if clock is None else clock
    wanted = check_batches(batches)
    memory = memory or measure_memory(source, wanted[-1])  # first: a model that never answers is found there
    model, load_ms = _loaded(source, clock, wanted[-1])
    try:
        if model.fixed_batch is not None:
            if model.fixed_batch not in wanted:
                raise BackendError(f"{source.label} takes batches of exactly {model.fixed_batch}; measure that size")
            wanted = (model.fixed_batch,)
        latency = latency_of(
            model, samples, wanted, budget_s=budget_s, tight=tight, clock=clock, progress=progress, adapter=adapter
        )
    finally:
        model.unload()
    return Measurement(latency, memory, load_ms)


def latency_of(
    model: Model,
    samples: Mapping[str, Array] | None = None,
    batches: Sequence[int] = BATCHES,
    *,
    budget_s: float = 20.0,
    tight: float = 0.02,
    clock: Clock | None = None,
    progress: Progress | None = None,
    adapter: Adapter | None = None,
) -> LatencyResult:
    """Latency of a loaded model, in its own buffers, as a worker that gathers queries there would run it."""
    wanted = check_batches(batches)
    model.prepare(wanted)
    if adapter is not None:
        assert samples is not None
        run = _resizing_run(model, samples, wanted, adapter)
        return measure_latency(run, wanted, budget_s=budget_s, tight=tight, clock=clock, progress=progress)
    # The largest first: a backend may keep all sizes in the memory of the largest.
    filled = {batch: _filled(model, samples, batch) for batch in sorted(wanted, reverse=True)}
    return measure_latency(
        lambda batch: model.run(filled[batch]), wanted, budget_s=budget_s, tight=tight, clock=clock, progress=progress
    )


def _resizing_run(
    model: Model, samples: Mapping[str, Array], batches: Sequence[int], adapter: Adapter
) -> Callable[[int], object]:
    """What a worker does with queries of another size: makes them the model's own in its buffers, and runs it."""
    [spec] = model.inputs
    given = samples[spec.name]
    sent = {batch: given[np.arange(batch) % len(given)] for batch in batches}
    # The largest first: a backend may keep all sizes in the memory of the largest.
    buffers = {batch: model.buffers(batch) for batch in sorted(batches, reverse=True)}

    def run(batch: int) -> object:
        buffers[batch][spec.name][...] = adapter(sent[batch])
        return model.run(buffers[batch])

    return run


def _loaded(source: ModelSource, clock: Clock, largest: int) -> tuple[Model, float]:
    times: list[int] = []
    if source.device != "cpu":
        started = clock.now_ns()
        model = load_model(source)
        model.prepare((model.fixed_batch or largest,))
        return model, (clock.now_ns() - started) / NS_PER_MS
    while True:
        started = clock.now_ns()
        model = load_model(source)
        batch = model.fixed_batch or 1
        model.run({spec.name: spec.zeros(batch) for spec in model.inputs})
        times.append(clock.now_ns() - started)
        if len(times) == LOADS:
            return model, min(times) / NS_PER_MS
        model.unload()


def _filled(model: Model, samples: Mapping[str, Array] | None, batch: int) -> dict[str, Array]:
    buffers = model.buffers(batch)
    random = np.random.default_rng(1)
    for spec in model.inputs:
        buffer = buffers[spec.name]
        given = None if samples is None else samples.get(spec.name)
        if given is not None:
            if not len(given) or not spec.fits(given.shape[1:]):
                raise ProfileError(f"the samples for input {spec.name} do not have shape {spec.shape_text()}")
            buffer[...] = given[np.arange(batch) % len(given)]
        elif buffer.dtype.kind == "f":
            buffer[...] = random.random(buffer.shape)
        else:
            buffer[...] = 0  # a whole number may be an index, and 0 is always one
    return buffers
