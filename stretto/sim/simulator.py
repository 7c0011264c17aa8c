"""The driver under virtual time: feeds arrivals to the dispatcher, calls planners between slices, collects results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_S
from stretto.core.snapshot import Snapshot, snapshot_of
from stretto.core.view import Planner
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.records import NEVER
from stretto.planning.session import Session
from stretto.sim.arrivals import ARRIVAL, Source
from stretto.sim.autoscale import Autoscaling, SimulatedFleet
from stretto.sim.loop import RECORD, SIMULATION, TELL, Pause, run_until
from stretto.sim.results import Result, Tallies, empty_tallies, summarise, with_fleet
from stretto.sim.service import Deterministic, Service, ServiceArrays, service_arrays

MAX_SECONDS = 7 * 86_400.0


class FaultKind(IntEnum):
    """What happens to a worker."""

    LEFT = 0
    JOINED = 1
    LEAVING = 2  # when what it runs has ended


@dataclass(frozen=True)
class Fault:
    """A worker leaves or comes back at a moment of the run."""

    second: float
    worker: int
    kind: FaultKind


def loop_arrays(law: ServiceArrays, deployment: Deployment) -> dict[str, NDArray[Any]]:
    """What the loop reads and writes besides its tallies, before anything has happened."""
    workers = len(deployment.workers)
    return {
        "penalties": np.array([application.penalty for application in deployment.applications], dtype=np.int64),
        "service": law.table,
        "parameters": law.parameters,
        "laws": law.laws,
        "handoffs": law.handoffs_ns,
        "took": np.full(workers, -1, dtype=np.int64),  # unknown, but where handoffs are told from runs
        "heap": np.arange(workers, dtype=np.int64),
        "place": np.arange(workers, dtype=np.int64),
        "finish": np.full(workers, NEVER, dtype=np.int64),
        "loads": np.full(workers, NEVER, dtype=np.int64),  # when a load beside the worker's work ends
        "records": np.zeros(1, dtype=RECORD),
        "arrivals": np.zeros(0, dtype=ARRIVAL),
        "tells": np.zeros(0, dtype=TELL),
        "class_counts": np.zeros(1, dtype=np.int64),
    }


class Simulation:
    """One run in progress. `simulate` is the usual way in; this is for callers who step it themselves."""

    def __init__(
        self,
        deployment: Deployment,
        planner: Planner | Session,
        source: Source,
        *,
        seconds: float,
        seed: int = 1,
        service: Service | None = None,
        delays: Delays | None = None,
        warmup_s: float = 0.0,
        record: bool = False,
        expected_rates: Sequence[float] | None = None,
        correction: float = 0.0,
        evidence: NDArray[np.float64] | None = None,
    ) -> None:
        if not 0 < seconds <= MAX_SECONDS:
            raise StrettoError(f"a simulation runs between 0 and {MAX_SECONDS:.0f} seconds, not {seconds}")
        if not 0 <= warmup_s < seconds:
            raise StrettoError(f"the warm-up of {warmup_s} s must be shorter than the run of {seconds} s")
        self.deployment, self.seed = deployment, seed
        self.session = planner if isinstance(planner, Session) else Session(planner, has_doors=False)
        self._evidence = evidence
        self.seconds, self.warmup_s = seconds, warmup_s
        self.expected_rates = tuple(
            source.expected_rates(deployment, seconds) if expected_rates is None else expected_rates
        )
        conditions = Conditions(delays=delays or Delays())
        self._evidence_ns = conditions.delays.evidence_ns
        self.in_force = self.session.first(deployment, 0, conditions, expected_rates=self.expected_rates)
        self.dispatcher = Dispatcher(deployment, self.in_force.plan, correction=correction)
        self.planner_name = self.in_force.plan.planner
        self.samples: list[Snapshot] = []
        self._busy_ns = np.zeros(len(deployment.workers), dtype=np.int64)
        self._busy_until_ns = 0
        self.submitted = np.zeros(len(deployment.applications), dtype=np.int64)
        self._chunks: Iterator[NDArray[Any]] = iter(source.chunks(deployment, seconds, seed))
        self._state = np.zeros(1, dtype=SIMULATION)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._recording = record
        stride = int(self.dispatcher.memory.state["latency_stride"][0])
        law = service_arrays(service or Deterministic(), deployment, stride)
        self._tallies = empty_tallies(deployment, stride)
        for name, array in (loop_arrays(law, deployment) | self._tallies).items():
            self._put(name, array)
        state = self._state
        state["draw"], state["base"], state["stride"] = law.draw, law.base, stride
        state["warmup_ns"] = int(warmup_s * NS_PER_S)
        state["recording"] = record
        state["more_arrivals"] = 1
        state["next_load"] = -1
        state["random"] = np.random.SeedSequence([seed, 0x5E41]).generate_state(1, np.uint64)[0]

    @property
    def now_ns(self) -> int:
        return int(self._state["now_ns"][0])

    @property
    def is_drained(self) -> bool:
        """Nothing will happen any more."""
        done = self._state["more_arrivals"][0] == 0 and self._state["next_arrival"][0] >= len(self._arrays["arrivals"])
        ends = min(self._arrays["finish"].min(), self._arrays["loads"].min())
        idle = ends >= NEVER and self.dispatcher.wake_at_ns() is None
        return bool(done and idle and not self.dispatcher.has_decisions)

    def run_to(self, until_ns: int) -> None:
        """Let virtual time run to `until_ns`."""
        end_ns = int(self.seconds * NS_PER_S)
        if self._busy_until_ns < end_ns:  # what comes after the last arrival is not part of the load
            self._run_to(min(until_ns, end_ns))
            if until_ns >= end_ns:
                self._busy_ns = self.dispatcher.busy_ns()
            self._busy_until_ns = min(until_ns, end_ns)
        if until_ns > end_ns:
            self._run_to(until_ns)

    def _run_to(self, until_ns: int) -> None:
        while True:
            pause = run_until(self._state, self.dispatcher.memory.state, until_ns)
            if pause == Pause.REACHED:
                return
            if pause == Pause.SLOTS:
                self.dispatcher.grow()
            else:
                self._next_chunk()

    def submit(self, application: int, deadline_ns: int, client: int = -1) -> int:
        """A query comes now: for callers whose queries depend on the answers before, beside a source that has none.

        Returns its row among the records, which its end is written to.
        """
        self._settle()
        now_ns, tag = self.now_ns, int(self._state["first_tag"][0])
        if now_ns >= self._state["warmup_ns"][0]:
            self.submitted[application] += 1
        if self._recording:
            records = self._records_for(tag + 1)
            records[tag] = (now_ns, deadline_ns, -1, -1, application, client, -1, -1, -1, 0, -1, 0)  # as in RECORD
        self._state["first_tag"] = tag + 1
        self.dispatcher.submit(now_ns, application, deadline_ns, tag, client)
        return tag

    @property
    def records(self) -> NDArray[Any]:
        """A row per query that came, where the run records them; an outcome of -1: it has not ended."""
        return self._arrays["records"]

    def replan(self, clients: Callable[[], tuple[Client, ...]] = tuple, left_ns: tuple[int, ...] | None = None) -> None:
        """Show the planner the present state and follow what it says. `left_ns`: as in Conditions."""
        self._settle()
        waiting = partial(self.dispatcher.waiting, None if self._evidence is None else self._theta_of)
        telemetry = self.dispatcher.telemetry(self.now_ns)
        conditions = replace(self.in_force.conditions, left_ns=left_ns)
        self.in_force = self.session.next(
            self.in_force, telemetry, conditions, clients=clients, waiting=waiting, lines=self.dispatcher.lines
        )
        self._follow()

    def leave_ns(self, left_ns: tuple[int, ...] | None) -> None:
        """The plan in force with what networks leave of SLOs, as in Conditions; the planner is not asked."""
        self._settle()
        self.in_force = self.session.under(self.in_force, replace(self.in_force.conditions, left_ns=left_ns))
        self._follow()

    def _follow(self) -> None:
        if self.in_force.plan is not self.dispatcher.plan:
            self.dispatcher.follow(self.now_ns, self.in_force.plan)

    def _theta_of(self, ticket: int, tag: int) -> tuple[float, ...] | None:
        """The evidence of the arrival of this number, if it is there by now."""
        state = self._state[0]
        told = state["first_tag"] + state["next_tell"] - state["tell_of_first"]
        if self._evidence is None or tag >= len(self._evidence) or (self._evidence_ns > 0 and tag >= told):
            return None
        known = self._evidence[tag][~np.isnan(self._evidence[tag])]
        return tuple(known.tolist()) if len(known) else None

    def sample(self) -> None:
        """Keep a snapshot for the results."""
        telemetry, plan = self.dispatcher.telemetry(self.now_ns), self.dispatcher.plan
        self.samples.append(snapshot_of(self.deployment, telemetry, plan, self.in_force.conditions.delays))

    def apply(self, fault: Fault) -> None:
        """A worker leaves, with what it runs or after it, or comes back."""
        self._settle()
        if fault.kind is FaultKind.JOINED:
            self.dispatcher.worker_joined(self.now_ns, fault.worker)
            return
        loads = self._arrays["loads"]
        loads[fault.worker] = NEVER
        self._state["next_load"] = int(np.argmin(loads)) if loads.min() < NEVER else -1
        if fault.kind is FaultKind.LEAVING:
            self.dispatcher.worker_leaving(self.now_ns, fault.worker)
            return
        self._arrays["finish"][fault.worker] = NEVER
        self._rebuild_heap()
        self.dispatcher.worker_left(self.now_ns, fault.worker)

    def leave(self, worker: int) -> None:
        """A worker goes, when it has finished what it runs."""
        self.apply(Fault(0.0, worker, FaultKind.LEAVING))

    def join(self, worker: int) -> None:
        self.apply(Fault(0.0, worker, FaultKind.JOINED))

    def result(self) -> Result:
        """Figures of the run so far."""
        seconds = self.seconds - self.warmup_s
        came = int(self._state["next_arrival"][0])
        tallies = Tallies(submitted=self.submitted - self._counted(self._arrays["arrivals"][came:]), **self._tallies)
        is_over = self._busy_until_ns >= int(self.seconds * NS_PER_S)
        busy = (self._busy_ns if is_over else self.dispatcher.busy_ns()) / max(self._busy_until_ns, 1)
        summary = summarise(
            tallies, self.deployment, seconds=seconds, planner=self.planner_name, seed=self.seed, worker_busy=busy
        )
        total = int(self._state["first_tag"][0]) + came
        return Result(
            summary=summary,
            queries=self._arrays["records"][:total].copy() if self._recording else None,
            samples=tuple(self.samples),
            latency_histogram=self._tallies["latency_histogram"].copy(),
            queueing_histogram=self._tallies["queueing_histogram"].copy(),
        )

    def _settle(self) -> None:
        """Carry out what was decided at this very moment: the next event from outside the loop empties the buffer."""
        self.run_to(self.now_ns)

    def _put(self, name: str, array: NDArray[Any]) -> None:
        contiguous = np.ascontiguousarray(array)
        self._arrays[name] = contiguous
        self._state[f"{name}_at"] = contiguous.ctypes.data
        self._state[f"{name}_count"] = contiguous.size

    def _rebuild_heap(self) -> None:
        order = np.argsort(self._arrays["finish"], kind="stable").astype(np.int64)  # a sorted array is a heap
        self._arrays["heap"][:] = order
        self._arrays["place"][order] = np.arange(len(order), dtype=np.int64)

    def _next_chunk(self) -> None:
        state = self._state
        state["first_tag"] += len(self._arrays["arrivals"])
        chunk = next(self._chunks, None)
        state["next_arrival"] = 0
        if chunk is None:
            state["more_arrivals"] = 0
            chunk = np.zeros(0, dtype=ARRIVAL)
        submitted = chunk if self._evidence_ns == 0 else self._with_tells(chunk)
        self._put("arrivals", submitted)
        self.submitted += self._counted(chunk)
        if self._recording and len(chunk):
            self._record(chunk, int(state["first_tag"][0]))

    def _with_tells(self, chunk: NDArray[Any]) -> NDArray[Any]:
        """The arrivals without their classes, which are told some time later."""
        state = self._state
        waiting = self._arrays["tells"][int(state["next_tell"][0]) :]
        tells = np.zeros(len(chunk), dtype=TELL)
        tells["time_ns"] = chunk["time_ns"] + self._evidence_ns
        tells["ticket"], tells["query_class"] = -1, chunk["query_class"]
        state["next_tell"], state["tell_of_first"] = 0, len(waiting)
        self._put("tells", np.concatenate([waiting, tells]))
        unknown = chunk.copy()
        unknown["query_class"] = -1
        return unknown

    def _counted(self, arrivals: NDArray[Any]) -> NDArray[np.int64]:
        """How many of these arrivals count, by application."""
        after_warmup = arrivals["time_ns"] >= self._state["warmup_ns"][0]
        return np.bincount(arrivals["application"][after_warmup], minlength=len(self.submitted))

    def _record(self, chunk: NDArray[Any], first: int) -> None:
        rows = self._records_for(first + len(chunk))[first : first + len(chunk)]
        rows["arrival_ns"] = chunk["time_ns"]
        for name in ("deadline_ns", "application", "client", "query_class", "priority"):
            rows[name] = chunk[name]
        rows["start_ns"] = rows["end_ns"] = rows["variant"] = rows["worker"] = rows["outcome"] = -1

    def _records_for(self, count: int) -> NDArray[Any]:
        """With room for so many."""
        records = self._arrays["records"]
        if count > len(records):
            grown = np.zeros(max(2 * len(records), count), dtype=RECORD)
            grown[: len(records)] = records
            self._put("records", grown)
        return self._arrays["records"]


def simulate(
    deployment: Deployment,
    planner: Planner | Session,
    source: Source,
    *,
    seconds: float,
    seed: int = 1,
    service: Service | None = None,
    delays: Delays | None = None,
    replan_s: float | None = None,
    sample_s: float | None = None,
    warmup_s: float = 0.0,
    record: bool = False,
    expected_rates: Sequence[float] | None = None,
    correction: float = 0.0,
    faults: Sequence[Fault] = (),
    evidence: NDArray[np.float64] | None = None,
    autoscaling: Autoscaling | None = None,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run `seconds` of arrivals and let everything that is waiting end.

    A session is followed as a server follows it; a bare planner without doors, as published systems are. The planner is
    called at the start and each `replan_s`; `sample_s` keeps snapshots in the result.
    `evidence` holds the posterior of each arrival's class, a row each, for planners that look at what is waiting; NaN
    fills the places of classes that its application does not have, or the whole row where there is no evidence. What it
    says, and the class of an arrival, is known when `delays.evidence_ns` have passed.
    With `autoscaling` the deployment's workers are slots, of which those are filled that the autoscaler wants.
    """
    run = Simulation(
        deployment,
        planner,
        source,
        seconds=seconds,
        seed=seed,
        service=service,
        delays=delays,
        warmup_s=warmup_s,
        record=record,
        expected_rates=expected_rates,
        correction=correction,
        evidence=evidence,
    )
    _check_faults(faults, deployment, seconds)
    end_ns = int(seconds * NS_PER_S)
    fleet = None if autoscaling is None else SimulatedFleet(run, autoscaling)
    periods = () if autoscaling is None else (autoscaling.options.period_s, autoscaling.options.start_s)
    for stop_ns, actions in _stops(end_ns, replan_s, sample_s, faults, periods, progress is not None):
        run.run_to(stop_ns)
        for action in actions:
            if action == "replan":
                run.replan()
            elif action == "sample":
                run.sample()
            elif fleet is not None and action == "control":
                fleet.control()
            elif fleet is not None and action == "arrive":
                fleet.arrive()
            elif isinstance(action, Fault):
                run.apply(action)
        if progress is not None:
            progress(stop_ns / end_ns)
    _drain(run, end_ns, replan_s)
    return run.result() if fleet is None else with_fleet(run.result(), fleet.trace(seconds))


def _check_faults(faults: Sequence[Fault], deployment: Deployment, seconds: float) -> None:
    for fault in faults:
        if not 0 <= fault.second <= seconds:
            raise StrettoError(f"a worker cannot leave or join at {fault.second} s; the run lasts {seconds} s")
        if not 0 <= fault.worker < len(deployment.workers):
            raise StrettoError(f"worker number {fault.worker} is outside 0 … {len(deployment.workers) - 1}")


def _stops(
    end_ns: int,
    replan_s: float | None,
    sample_s: float | None,
    faults: Sequence[Fault],
    periods: Sequence[float],
    with_progress: bool,
) -> list[tuple[int, list[Any]]]:
    """The moments at which the compiled loop comes back, and what is done there. `periods`: of an autoscaler, and how
    long after each the workers come that it ordered.
    """
    stops: dict[int, list[Any]] = {end_ns: []}
    for fault in faults:
        stops.setdefault(int(fault.second * NS_PER_S), []).append(fault)
    if periods:
        step, start = (round(each * NS_PER_S) for each in periods)
        for at_ns in range(step, end_ns, step):
            stops.setdefault(at_ns, []).append("control")
            stops.setdefault(at_ns + start, []).append("arrive")
        stops = {at_ns: actions for at_ns, actions in stops.items() if at_ns <= end_ns}
    for action, every in (("sample", sample_s), ("replan", replan_s)):
        if every is not None:
            if not 0 < every <= MAX_SECONDS:
                raise StrettoError(f"the {action} interval is between 0 and {MAX_SECONDS:.0f} seconds, not {every}")
            step = max(1, int(every * NS_PER_S))
            for at_ns in range(step, end_ns, step):
                stops.setdefault(at_ns, []).append(action)
    if with_progress:
        for part in range(1, 100):
            stops.setdefault(end_ns * part // 100, [])
    return sorted(stops.items(), key=lambda stop: stop[0])


def _drain(run: Simulation, end_ns: int, replan_s: float | None) -> None:
    """Arrivals are over: go on until nothing is left to happen, still calling a periodic planner, within reason."""
    longest = max(application.slo_ns for application in run.deployment.applications)
    if replan_s is None:
        run.run_to(int(NEVER))
        return
    step = max(1, int(replan_s * NS_PER_S))
    at_ns = end_ns
    while not run.is_drained or run.dispatcher.waiting_count > 0:
        if at_ns > end_ns + 100 * longest + 10 * step:
            return
        run.replan()
        at_ns += step
        run.run_to(at_ns)
