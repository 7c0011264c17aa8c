"""Many simulations side by side, a slot of time at a call: what a learner of routes steps through.

Every simulation is a dispatcher and an event loop of its own, the very ones that `simulate` runs; only their memory
lies together, so that one compiled call advances thousands. Between two slots routes get other weights, as by
`reroute`, and lanes other batch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Deferred, Fixed, Plan, Release
from stretto.core.profile import NS_PER_S
from stretto.core.view import Lines
from stretto.dispatch.alias import fill_alias
from stretto.dispatch.arrays import fetch, unowned
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.lines import read_lines
from stretto.dispatch.rates import rate_at
from stretto.dispatch.records import DTYPES, alias, int64s, lanes
from stretto.dispatch.turns import refresh
from stretto.sim.arrivals import ARRIVAL
from stretto.sim.loop import SIMULATION, Pause, run_until
from stretto.sim.results import empty_tallies
from stretto.sim.service import Deterministic, Service, service_arrays
from stretto.sim.simulator import loop_arrays
from stretto.sim.switching import PHASES, SILENT, Switching, draw_arrivals, switches
from stretto.sim.tape import Tape, play, players

MOST_ARRIVALS = 16_384  # of one simulation in one slot
ALIGNED = 64  # bytes: a line of the processor's cache
# Bytes of the next simulation's arrays that are brought while one runs: those up to here whole, of others so many.
FETCHED_WHOLE, FETCHED = 20 * ALIGNED, 8 * ALIGNED
# One for all simulations: what is not counted here, and decisions, which are carried out before the next one runs.
SHARED = (
    *("arrivals", "records", "counts", "variant_counts", "evidence_counts"),
    *("late_worth", "late_evidence_worth"),
    *("latency_histogram", "queueing_histogram", "batch_histogram", "decisions", "decided"),
)
# One for all copies of a case: what nothing writes (latencies are not corrected here).
STILL = (
    *("rows", "latency", "profiled", "lane_workers", "members", "worker_lanes", "choices", "tables", "floors"),
    *("route_lanes", "route_targets", "service", "parameters", "laws", "handoffs", "penalties"),
)
Part = tuple[NDArray[Any], str, Sequence[NDArray[Any]]]  # who is told its address, its name, and it by case


@dataclass(frozen=True)
class Case:
    """What one of the simulations runs: one application, lanes that keep their queries, and a load."""

    deployment: Deployment
    plan: Plan  # its first route is the weighted one
    load: Switching | Tape
    service: Service = field(default_factory=Deterministic)


@dataclass(frozen=True, eq=False)
class Slot:
    """What a slot brought, by simulation."""

    lines: Lines  # at its end, with one more axis in front
    counts: NDArray[np.int64]  # [simulation, phase, 2·variant + (0 on time, 1 late) or 2·variants for no answer]
    arrivals: NDArray[np.int64]
    phase: NDArray[np.int64]  # at its end
    since_ns: NDArray[np.float64]  # how long that phase lasts already
    rates: NDArray[np.float64]  # λ as measured, queries/s
    now_ns: int


class ManySimulations:
    """`copies` of every case. All cases have as many lanes, workers and variants."""

    def __init__(self, cases: Sequence[Case], copies: int = 1, *, depth: int = 16, seed: int = 1) -> None:
        self.cases = tuple(cases)
        self.count = len(cases) * copies
        self._copies, self._depth = copies, depth
        self._made = [_made(case) for case in cases]
        self._arrivals = np.zeros(MOST_ARRIVALS, dtype=ARRIVAL)
        self._arrivals["client"] = -1
        self._slo_ns = self._repeated([case.deployment.applications[0].slo_ns for case in cases])
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """All of them from the start, with other chance."""
        self._states = np.concatenate([dispatcher.memory.state for dispatcher, _, _ in self._made])
        self._states = np.repeat(self._states, self._copies)
        self._simulations = np.repeat(np.concatenate([state for _, state, _ in self._made]), self._copies)
        first, _, first_arrays = self._made[0]
        parts = [
            (self._states, name, [dispatcher.memory[name] for dispatcher, _, _ in self._made])
            for name in first.memory.arrays
        ]
        parts += [(self._simulations, name, [arrays[name] for _, _, arrays in self._made]) for name in first_arrays]
        parts = sorted((part for part in parts if part[1] not in SHARED), key=lambda part: part[2][0].nbytes)
        self._still = self._laid([part for part in parts if part[1] in STILL], 1)
        own_parts = [part for part in parts if part[1] not in STILL]
        self._memory = self._laid(own_parts, self._copies)
        begins, sizes = _places(own_parts)
        fetched = [size if size <= FETCHED_WHOLE else FETCHED for size in sizes]
        lines = [np.arange(0, size, ALIGNED) + begin for begin, size in zip(begins, fetched, strict=True)]
        self._fetched = np.concatenate(lines)  # where they are in the memory of a simulation
        for name in SHARED:
            shared = (
                self._arrivals if name == "arrivals" else first.memory[name] if name in DTYPES else first_arrays[name]
            )
            records = self._states if name in DTYPES else self._simulations
            records[f"{name}_at"] = shared.ctypes.data
        random = np.random.default_rng([seed, 0x3A27])
        for records in (self._states, self._simulations):
            records["random"] = random.integers(0, 2**63, self.count, dtype=np.uint64)
        own_loads = [case.load if isinstance(case.load, Switching) else SILENT for case in self.cases]
        self._switches = switches(tuple(load for load in own_loads for _ in range(self._copies)), seed)
        tapes = [case.load if isinstance(case.load, Tape) else None for case in self.cases]
        self._players, self._queries = players(tapes, self._copies, seed)
        lane_count = len(self.cases[0].plan.lanes)
        length, running = (np.zeros((self.count, lane_count), np.int64) for _ in range(2))
        arrival_ns = np.full((self.count, lane_count, self._depth), -1)
        self._lines = Lines(length, running, np.full_like(length, -1), arrival_ns)
        self._came = np.zeros(self.count, np.int64)
        self._rates = np.zeros(self.count)
        self.now_ns = 0

    def run_slot(self, seconds: float, weights: NDArray[np.float64], batches: NDArray[np.int64] | None = None) -> Slot:
        """Time goes on. `weights` [simulation, lane] are shares that sum to one; `batches` [simulation, lane, 2] are
        the smallest batch and the largest.
        """
        until_ns = self.now_ns + round(seconds * NS_PER_S)
        sizes = np.zeros((self.count, 0, 2), np.int64) if batches is None else batches
        lines = self._lines
        views = (lines.length, lines.running, lines.started_ns, lines.arrival_ns, self._came, self._rates)
        keep_and_heights = np.empty((2, weights.shape[1]))
        other_and_stack = np.empty(keep_and_heights.shape, np.int64)
        stuck = step_all(
            self._simulations,
            self._states,
            self._switches,
            self._players,
            self._queries,
            self._arrivals,
            self._slo_ns,
            np.ascontiguousarray(weights, np.float64),
            sizes,
            self._memory,
            self._fetched,
            until_ns,
            *views,
            *keep_and_heights,
            *other_and_stack,
        )
        if stuck >= 0:
            raise StrettoError(
                f"more than {MOST_ARRIVALS} queries come in one slot of {seconds * 1e3:g} ms; take a shorter slot"
            )
        self.now_ns = until_ns
        return self.slot()

    def slot(self) -> Slot:
        """As it is now. Arrays are those that the next slot overwrites."""
        width = 2 * len(self.cases[0].deployment.variants) + 1
        counts = self._counts.reshape(self.count, PHASES, width)
        since_ns = self.now_ns - self._switches["began_ns"]
        return Slot(self._lines, counts, self._came, self._switches["phase"], since_ns, self._rates, self.now_ns)

    def _repeated(self, values: Sequence[int]) -> NDArray[np.int64]:
        return np.repeat(np.array(values, np.int64), self._copies)

    def _laid(self, parts: Sequence[Part], copies: int) -> NDArray[np.uint8]:
        """So many copies of each case's arrays, those of one copy side by side, so that a slot finds them in few pages;
        records are told where theirs are.
        """
        begins, sizes = _places(parts)
        memory = np.zeros((len(self.cases) * copies, sum(sizes)), np.uint8)
        at = memory.ctypes.data + np.arange(len(memory), dtype=np.uint64) * np.uint64(memory.shape[1])
        at = np.repeat(at, self.count // len(memory))
        for (records, name, arrays), begin in zip(parts, begins, strict=True):
            whole = np.stack([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
            place = memory[:, begin : begin + whole.shape[1]]
            place[:] = np.repeat(whole, copies, axis=0)
            records[f"{name}_at"] = at + np.uint64(begin)
            records[f"{name}_count"] = arrays[0].size
            if name == "class_counts":
                self._counts = place.view(np.int64)
        return memory


def _places(parts: Sequence[Part]) -> tuple[list[int], list[int]]:
    """Where each array begins in the memory of a simulation, and the bytes that it has there, in whole lines."""
    sizes = [-(-arrays[0].nbytes // ALIGNED) * ALIGNED for _, _, arrays in parts]
    return [0, *np.cumsum(sizes)[:-1].tolist()], sizes


def _made(case: Case) -> tuple[Dispatcher, NDArray[Any], dict[str, NDArray[Any]]]:
    """A dispatcher with room for just what its lanes can hold, and the memory of its loop."""
    plan, deployment = case.plan, case.deployment
    slots = 1 + sum(lane.capacity for lane in plan.lanes)
    dispatcher = Dispatcher(deployment, plan, slots=slots)
    if all(isinstance(lane.select, Fixed) and not _goes_by_rate(lane.release) for lane in plan.lanes):
        dispatcher.memory.state["counts_lanes"] = 0  # nobody else reads the λ of a lane here
    stride = int(dispatcher.memory.state["latency_stride"][0])
    law = service_arrays(case.service, deployment, stride)
    arrays = loop_arrays(law, deployment) | empty_tallies(deployment, stride)
    arrays["class_counts"] = np.zeros(PHASES * (2 * len(deployment.variants) + 1), np.int64)
    state = np.zeros(1, dtype=SIMULATION)
    state["draw"], state["base"], state["stride"], state["classes"] = law.draw, law.base, stride, PHASES
    state["next_load"] = -1
    return dispatcher, state, arrays


def _goes_by_rate(release: Release) -> bool:
    return isinstance(release, Deferred) or len(release.floor_rates) > 0


@compiled
def set_weights(s: Any, shares: Any, keep: Any, other: Any, heights: Any, stack: Any) -> None:
    """Other weights for the first route, as `lay_out_weights` writes them."""
    for column in range(len(other)):
        keep[column] = 1.0
        other[column] = column
    fill_alias(shares, keep, other, heights, stack)
    for column in range(len(shares)):
        entry = alias(s)[column]
        entry.keep = keep[column]
        entry.other = other[column]


@compiled
def set_batches(s: Any, sizes: Any) -> None:
    """Other batch sizes for lanes that gather queries; a lane that may start earlier now does so."""
    for lane_index in range(len(sizes)):
        lane = lanes(s)[lane_index]
        if lane.min_batch != sizes[lane_index, 0] or lane.max_batch != sizes[lane_index, 1]:
            lane.min_batch = sizes[lane_index, 0]
            lane.max_batch = sizes[lane_index, 1]
            refresh(s, lane_index, s.now_ns)


@compiled
def fetch_simulation(simulations: Any, states: Any, memory: Any, fetched: Any, number: int) -> None:
    """Bring what a simulation will need, while the one before it runs: thousands do not fit into the nearest cache."""
    for line in range(0, states.itemsize, ALIGNED):
        fetch(np.uint64(states.ctypes.data + number * states.itemsize + line))
    for line in range(0, simulations.itemsize, ALIGNED):
        fetch(np.uint64(simulations.ctypes.data + number * simulations.itemsize + line))
    for line in fetched:
        fetch(np.uint64(memory.ctypes.data + number * memory.shape[1] + line))


@compiled
def step_all(
    simulations: Any,
    states: Any,
    switch: Any,
    player: Any,
    queries: Any,
    arrivals: Any,
    slo_ns: Any,
    weights: Any,
    sizes: Any,
    memory: Any,
    fetched: Any,
    until_ns: int,
    length: Any,
    running: Any,
    started_ns: Any,
    arrival_ns: Any,
    came: Any,
    rates: Any,
    keep: Any,
    heights: Any,
    other: Any,
    stack: Any,
) -> int:
    """Every simulation runs to `until_ns`. -1, or the number of one that has too many queries."""
    simulations, states, weights, sizes = unowned(simulations), unowned(states), unowned(weights), unowned(sizes)
    length, running, started_ns = unowned(length), unowned(running), unowned(started_ns)
    arrival_ns, switch, arrivals = unowned(arrival_ns), unowned(switch), unowned(arrivals)
    player, queries = unowned(player), unowned(queries)
    keep, heights, other, stack = unowned(keep), unowned(heights), unowned(other), unowned(stack)
    memory, fetched = unowned(memory), unowned(fetched)
    for number in range(len(states)):
        fetch_simulation(simulations, states, memory, fetched, min(number + 1, len(states) - 1))
        simulation, state = simulations[number : number + 1], states[number : number + 1]
        m, s = simulation[0], state[0]
        int64s(m.class_counts_at, m.class_counts_count)[:] = 0
        set_weights(s, weights[number], keep, other, heights, stack)
        if sizes.shape[1] > 0:
            set_batches(s, sizes[number])
        if player[number].count > 0:
            came[number] = play(player[number], queries, arrivals, until_ns)
        else:
            came[number] = draw_arrivals(switch[number], arrivals, slo_ns[number], m.now_ns, until_ns)
        if came[number] < 0:
            return number
        m.arrivals_count = came[number]
        m.next_arrival = 0
        if run_until(simulation, state, until_ns) != Pause.REACHED.value:
            return number
        read_lines(state, length[number], running[number], started_ns[number], arrival_ns[number])
        rates[number] = rate_at(s, 0, until_ns) * 1e9
    return -1
