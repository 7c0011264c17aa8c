"""Measures l(b): how long a batch of b takes, while watching whether the machine was quiet enough to believe it.

Batch sizes take turns in short blocks, so that a drift of the machine touches all alike. A block counts only if nothing
outside the model disturbed it: no other program kept this one waiting, the other programs left a core free, and a fixed
piece of work took as long as it usually does. Runs are never judged by their own latency, which would cut off the tail
that p95 is about. Where too few blocks were quiet, the quietest ones are reported, less the time that runs were kept
waiting, and marked as noisy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import ProfileError
from stretto.core.profile import MAX_BATCH_LIMIT
from stretto.profiling.clock import NS_PER_S, Clock, Reading, SystemClock
from stretto.profiling.estimate import BatchLatency, fitted_line, p95_error, summarised

BATCHES = (1, 2, 4, 8, 16, 32)
NS_PER_MS = 1_000_000
BLOCK_NS = 10 * NS_PER_MS
ROUND_NS = 250 * NS_PER_MS  # the machine's load is counted in ticks of 10 ms: shorter rounds could not tell it
MAX_BLOCK_RUNS = 1000
WARM_NS = 300 * NS_PER_MS
WARM_RUNS = 2000
WARM_WINDOW = 5

# A block is disturbed when one of these is exceeded.
WAITING_SHARE = 0.01  # of its time, ready but not running
SLOWDOWN = 1.15  # of the fixed piece of work, against its usual time
FOREIGN_CORES = 0.25  # used by other programs, while less than that was left free
FREE_CORES = 0.25

# A run was interrupted when it waited longer than both. Its waiting is taken off, or, where the run is so short that
# the interruption may lie beside it, the run is left out.
INTERRUPTED_SHARE = 0.01
INTERRUPTED_NS = NS_PER_MS // 10
SHORT_NS = 2 * NS_PER_MS

MIN_NS = NS_PER_S  # a neighbour's short burst must not be all that was seen
MIN_BLOCKS = 6
MIN_RUNS = 20
ENOUGH_BLOCKS = 3  # to be reported as quiet when the time is spent
TRUSTED_ERROR = 0.10  # a p95 less sure than this is marked as noisy
FALLBACK_SHARE = 1 / 3  # of the blocks, the quietest, where too few are quiet

Progress = Callable[[float], None]


@dataclass(frozen=True)
class LatencyResult:
    """What was measured. `note` says in a sentence why it is noisy, and is empty where it is not."""

    batches: dict[int, BatchLatency]
    alpha_ms: float
    beta_ms: float
    is_noisy: bool
    note: str
    seconds: float
    quiet_share: float


@dataclass
class _Block:
    """Some runs of one batch size, and what happened around them."""

    runs_ns: NDArray[np.int64]
    waiting_share: float
    reference_ns: int
    foreign_cores: float = 0.0
    free_cores: float = 0.0


@dataclass
class _Size:
    """One batch size while it is measured."""

    batch: int
    expected_ns: float
    blocks: list[_Block] = field(default_factory=list)
    is_tight: bool = False


def check_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """Sorted and distinct; ProfileError where a size is no batch size."""
    if not batches:
        raise ProfileError("name at least one batch size, as 1,2,4,8")
    for batch in batches:
        if not 1 <= batch <= MAX_BATCH_LIMIT:
            raise ProfileError(f"batch size {batch} is not between 1 and {MAX_BATCH_LIMIT}")
    return tuple(sorted(set(batches)))


def measure_latency(
    run: Callable[[int], object],
    batches: Sequence[int] = BATCHES,
    *,
    budget_s: float = 20.0,
    tight: float = 0.02,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> LatencyResult:
    """Calls `run(batch)` until p95 of every batch size is known to `tight` (a share of it) or the time is spent."""
    sizes_wanted = check_batches(batches)
    if not 0 < budget_s <= 86_400:
        raise ProfileError(f"a time budget of {budget_s:g} s is not between 0 and a day")
    clock = SystemClock() if clock is None else clock
    started = clock.now_ns()
    end = started + int(budget_s * NS_PER_S)
    with _collector_off():
        sizes = [_Size(batch, _warmed(run, batch, clock)) for batch in sizes_wanted]
        while True:
            _round(run, [size for size in sizes if not size.is_tight] or sizes, clock, end)
            usual = _usual_reference(sizes)
            for size in sizes:
                quiet = [block.runs_ns for block in size.blocks if _is_quiet(block, usual)]
                enough = len(quiet) >= MIN_BLOCKS and sum(map(len, quiet)) >= MIN_RUNS
                size.is_tight = enough and p95_error(quiet) <= tight
            now = clock.now_ns()
            if progress is not None:
                done = sum(size.is_tight for size in sizes) / len(sizes)
                progress(min(1.0, max(done, (now - started) / (end - started))))
            if now >= end or (all(size.is_tight for size in sizes) and now - started >= MIN_NS):
                break
    return _result(sizes, clock, (clock.now_ns() - started) / NS_PER_S)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Python's garbage collector would show as a slow run now and then."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _warmed(run: Callable[[int], object], batch: int, clock: Clock) -> float:
    """Runs until runs no longer become faster; the typical time of the last few."""
    times: list[int] = []
    started = clock.now_ns()
    while len(times) < WARM_RUNS:
        before = clock.now_ns()
        run(batch)
        now = clock.now_ns()
        times.append(now - before)
        is_late = now - started > WARM_NS
        if len(times) >= 2 * WARM_WINDOW:
            earlier, last = np.median(times[-2 * WARM_WINDOW : -WARM_WINDOW]), np.median(times[-WARM_WINDOW:])
            if is_late or last >= 0.98 * earlier:
                break
        elif is_late and len(times) >= 2:
            break
    return max(1.0, float(np.median(times[-WARM_WINDOW:])))


def _round(run: Callable[[int], object], sizes: Sequence[_Size], clock: Clock, end: int) -> None:
    """Blocks of all batch sizes in turn until the machine's load can be told; it then holds for all these blocks."""
    before = clock.read()
    measured: list[_Block] = []
    now = before.wall_ns
    while now - before.wall_ns < ROUND_NS:
        for size in sizes:
            block = _block(run, size, clock)
            size.blocks.append(block)
            measured.append(block)
            now = clock.now_ns()
            # One block of each size there must be; after that the budget may end a round at any block.
            if now >= end and all(each.blocks for each in sizes):
                break
        if now >= end:
            break
    after = clock.read()
    foreign, free = _load(before, after, clock.cores)
    for block in measured:
        block.foreign_cores, block.free_cores = foreign, free


def _load(before: Reading, after: Reading, cores: int) -> tuple[float, float]:
    """Cores that other programs used, and cores that nobody used."""
    wall = max(1, after.wall_ns - before.wall_ns)
    busy, own_cpu = after.busy_ns - before.busy_ns, after.cpu_ns - before.cpu_ns
    return max(0.0, (busy - own_cpu) / wall), max(0.0, cores - max(busy, own_cpu) / wall)


def _block(run: Callable[[int], object], size: _Size, clock: Clock) -> _Block:
    count = int(min(MAX_BLOCK_RUNS, max(1, BLOCK_NS // size.expected_ns)))
    batch, now_ns, waiting_ns = size.batch, clock.now_ns, clock.waiting_ns
    runs = np.empty(count, dtype=np.int64)
    waits = np.empty(count, dtype=np.int64)
    first = clock.reference_ns()
    before = clock.read()
    waited = waiting_ns()
    for number in range(count):
        begun = now_ns()
        run(batch)
        runs[number] = now_ns() - begun
        waits[number] = waiting_ns()
    after = clock.read()
    reference = max(first, clock.reference_ns())
    wall = max(1, after.wall_ns - before.wall_ns)
    share = (after.waiting_ns - before.waiting_ns) / wall
    return _Block(_uninterrupted(runs, np.diff(waits, prepend=waited)), share, reference)


def _uninterrupted(runs_ns: NDArray[np.int64], waits_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The runs as they would have been had nobody else been scheduled in their place."""
    is_interrupted = (waits_ns > INTERRUPTED_NS) & (waits_ns > INTERRUPTED_SHARE * runs_ns)
    own_ns = np.where(is_interrupted, runs_ns - waits_ns, runs_ns)
    is_kept = ~is_interrupted | (own_ns > SHORT_NS)
    return np.asarray(np.maximum(own_ns[is_kept], 1))


def _usual_reference(sizes: Sequence[_Size]) -> float:
    """What the fixed piece of work takes undisturbed: nearly the least seen."""
    return float(np.quantile([block.reference_ns for size in sizes for block in size.blocks], 0.1))


def _is_quiet(block: _Block, usual_ns: float) -> bool:
    is_crowded = block.foreign_cores > FOREIGN_CORES and block.free_cores < FREE_CORES
    is_disturbed = block.waiting_share > WAITING_SHARE or block.reference_ns > SLOWDOWN * usual_ns
    return len(block.runs_ns) > 0 and not is_crowded and not is_disturbed


def _disturbance(block: _Block, usual_ns: float) -> float:
    return block.waiting_share + max(0.0, block.reference_ns / usual_ns - 1) + 0.1 * block.foreign_cores


def _result(sizes: Sequence[_Size], clock: Clock, seconds: float) -> LatencyResult:
    usual = _usual_reference(sizes)
    batches: dict[int, BatchLatency] = {}
    for size in sizes:
        quiet = [block.runs_ns for block in size.blocks if _is_quiet(block, usual)]
        summary = summarised(quiet) if len(quiet) >= ENOUGH_BLOCKS else None
        if summary is None:
            summary = summarised(_calmest(size, usual), is_noisy=True)
        elif summary.relative_error > TRUSTED_ERROR:
            summary = replace(summary, is_noisy=True)
        batches[size.batch] = summary
    alpha, beta = fitted_line({batch: latency.p95 for batch, latency in batches.items()})
    blocks = [block for size in sizes for block in size.blocks]
    quiet_share = sum(_is_quiet(block, usual) for block in blocks) / len(blocks)
    is_noisy = any(latency.is_noisy for latency in batches.values())
    note = _note(blocks, clock.cores, quiet_share, batches) if is_noisy else ""
    return LatencyResult(batches, alpha, beta, is_noisy, note, seconds, quiet_share)


def _calmest(size: _Size, usual_ns: float) -> list[NDArray[np.int64]]:
    """The least disturbed blocks that hold any run; never none."""
    blocks = sorted(size.blocks, key=lambda block: _disturbance(block, usual_ns))
    held = [block.runs_ns for block in blocks if len(block.runs_ns)]
    if not held:  # every single run was interrupted, and each too short to tell by how much
        return [np.array([size.expected_ns], dtype=np.int64)]
    return held[: max(ENOUGH_BLOCKS, round(FALLBACK_SHARE * len(held)))]


def _note(blocks: Sequence[_Block], cores: int, quiet_share: float, batches: dict[int, BatchLatency]) -> str:
    """Why the figures are not to be trusted, in words."""
    foreign = float(np.mean([block.foreign_cores for block in blocks]))
    waiting = float(np.mean([block.waiting_share for block in blocks]))
    unsure = [str(batch) for batch, latency in batches.items() if latency.is_noisy]
    if quiet_share > 0.5:
        return f"p95 of batch {', '.join(unsure)} varied too much to be sure of; give it more time"
    return (
        f"other programs used {foreign:.1f} of {cores} cores and kept this one waiting {waiting:.0%} of the time; "
        f"only {quiet_share:.0%} of the measurement was undisturbed"
    )
