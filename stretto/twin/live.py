"""The twin of a server: hears what comes and runs, and has candidates judged under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.deployment import Deployment, with_evidence
from stretto.core.evidence import Said
from stretto.core.fleet import Fleet
from stretto.core.plan import Delays
from stretto.core.telemetry import Telemetry
from stretto.core.verdict import Candidate, Verdict
from stretto.planners.judged.planner import known_after_s
from stretto.twin.as_measured import as_measured
from stretto.twin.classes import Classes, labelled_of
from stretto.twin.clients import are_networked
from stretto.twin.fleets import cheapest_judged
from stretto.twin.followed import Followed
from stretto.twin.judge import judge
from stretto.twin.measure import setting_from_telemetry
from stretto.twin.network_judge import judge_networks
from stretto.twin.recent import Recent, profiled_latencies_ns
from stretto.twin.resample import overlapping
from stretto.twin.setting import Setting
from stretto.twin.stretch import (
    LASTING_NS,
    LEVEL_NS,
    MOST_REQUESTS,
    WINDOWS_NS,
    ArrivalStretch,
    levelled,
    levelled_together,
)

LONGEST_NS = 120 * 10**9  # that a stretch of arrivals goes back
WINDOWS = ("short", "middle", "long")  # in which arrivals are counted
CHANCE = 3.0  # standard errors by which a figure may differ without having drifted
CERTAIN = 3.0  # a factor that is a drift, however badly the figure is known
DRIFT = 1.3  # a figure that differs by this factor makes conditions unlike
LEAST_DELAY = 0.05  # of the shortest SLO: what is below it need not be told apart
ENOUGH_RUNS = 100
TAILS = (1.0, 0.5, 0.0)  # of measured run times, which plans may reckon with
SPREAD = 1.1  # between the first and the last of them, from which on it matters
ENOUGH_NS = 4 * 10**9
ENOUGH_REQUESTS = MOST_REQUESTS // 2  # of one application: no more than twice as many are remembered, however fast
MOST_CPU_S = 180.0  # for one verdict, beside the serving
LEAST_SHARE = 0.1  # of an application's queries: classes that have less need not be told apart
BURST = 2.0  # times what chance makes of a count in short windows: queries come in bursts
TIMER_DOUBT = 0.4  # of how late batches end: it is told by the latest three of some hundred
CALLED = 0.02  # of all queries: an application with less is as good as not called


class LiveTwin:
    """Fed by an engine; known to it as its `Twin`."""

    def __init__(self, now_ns: int) -> None:
        self._recent = Recent(now_ns, longest_ns=LONGEST_NS)
        self.arrived, self.arrived_many = self._recent.arrived, self._recent.arrived_many
        self.classified = self._recent.classified
        self.handed_over = self._recent.handed_over
        self.ended = self._recent.ended
        self.serves = self._recent.serves
        self.clients = self._recent.clients

    def knows(self, said: Mapping[str, Said]) -> None:
        self._recent.knows(labelled_of(said))

    def ran(self, deployment: Deployment, variant: int, kind: str, batch: int, took_ns: int) -> None:
        profiled_ns = profiled_latencies_ns(deployment, variant, kind, batch)
        self._recent.ran(deployment.variant_label(variant), kind, batch, took_ns, *profiled_ns)

    def case(self, deployment: Deployment, telemetry: Telemetry, delays: Delays) -> Case:
        setting = setting_from_telemetry(deployment, telemetry, self._recent, delays=delays)
        alive = [
            worker for worker, is_there in zip(deployment.workers, telemetry.worker_alive, strict=True) if is_there
        ]
        there = deployment if not alive else Deployment(deployment.applications, tuple(alive), deployment.quantile)
        return Case(there, setting)

    @staticmethod
    def cheapest(
        deployment: Deployment,
        case: Case,
        needs: FleetNeeds,
        judged: Callable[[Case, tuple[float, ...]], Verdict],
    ) -> JudgedFleet:
        """`judged` says what each fleet would give; it may take as long as it likes."""
        rates = tuple(float(rate) for rate in case.setting.source().expected_rates(deployment, 1.0))
        return cheapest_judged(
            deployment, rates, needs, lambda fleet, rates: judged(replace(case, deployment=fleet), rates)
        )


@dataclass(frozen=True, eq=False)
class Case:
    """A setting, and the part of a deployment that is there."""

    deployment: Deployment
    setting: Setting

    def judged(self, rates: tuple[float, ...]) -> Verdict:
        return judge_setting(self.deployment, self.setting, rates, budget_s=MOST_CPU_S)

    @property
    def is_enough(self) -> bool:
        """Some seconds of a load, or very many requests, and batches that ran under it."""
        stretches = self.setting.arrivals.values()
        runs = sum(len(runs) for residuals in self.setting.residuals.values() for runs in residuals.by_bucket.values())
        is_long = any(each.span_ns >= ENOUGH_NS or len(each.requests) >= ENOUGH_REQUESTS for each in stretches)
        return runs >= ENOUGH_RUNS and is_long

    def conditions(self) -> Conditions:
        figures = figures_of(self.setting, self.deployment)
        return Conditions(Fleet(self.deployment.workers).counts(), figures, doubts_of(self.setting))


@dataclass(frozen=True)
class Conditions:
    """What a verdict rests on, in a few figures; a whole case is megabytes."""

    workers: Mapping[str, int]  # by kind
    figures: Mapping[str, float]
    doubts: Mapping[str, float] = field(default_factory=dict)  # of figures, the standard error as a share

    def changed_to(self, now: Conditions) -> str:
        """What is not about the same any more, in a few words; nothing where all is."""
        if self.workers != now.workers:
            return "other workers are there"
        doubts = {name: math.hypot(doubt, now.doubts.get(name, 0.0)) for name, doubt in self.doubts.items()}
        drifted = (name for name in self.figures if not are_alike({name: self.figures[name]}, now.figures, doubts))
        return ", ".join(f"{name} was {self.figures[name]:.3g} and is {now.figures[name]:.3g}" for name in drifted)


def judge_setting(
    deployment: Deployment,
    setting: Setting,
    rates: tuple[float, ...],
    *,
    candidates: Sequence[Candidate] | None = None,
    progress: Callable[[float], None] | None = None,
    budget_s: float = math.inf,
) -> Verdict:
    """At these rates; arrivals have the setting's shape, where anything came. Without `candidates` all are tried.
    `budget_s` bounds the processor time.
    """
    setting = replace(setting, arrivals=overlapping(setting.arrivals))
    unheard = {each.name for each in deployment.applications if not each.class_shares}
    said = {name: labelled.theta for name, labelled in setting.evidence.items() if name in unheard}
    deployment = with_evidence(deployment, said)
    measured = sum(setting.source().expected_rates(deployment, 1.0))
    if measured <= 0:
        names = (application.name for application in deployment.applications)
        arrivals = {name: ArrivalStretch(rate) for name, rate in zip(names, rates, strict=True)}
        setting, measured = replace(setting, arrivals=arrivals), sum(rates)
    as_it_came = setting
    called = [place for place, rate in enumerate(rates) if rate >= CALLED * sum(rates)]
    if len(called) == 1:
        setting = replace(setting, arrivals={name: levelled(each) for name, each in setting.arrivals.items()})
    else:  # whose peaks may go together, and stay
        setting = replace(setting, arrivals=levelled_together(setting.arrivals))
    moves = any(setting.arrivals[name] is not each for name, each in as_it_came.arrivals.items())
    worlds, ratios = {}, {}
    for tail in TAILS:
        world, conditions, ratios[tail] = as_measured(deployment, setting, tail)
        worlds[tail] = (world, conditions)
    if are_networked(worlds[1.0][0], setting.clients):
        verdict = judge_networks(*worlds[1.0], setting.clients, rates, progress=progress)
        return replace(verdict, ratios=ratios[1.0] if setting.residuals else ())
    at_most, at_least = np.array(ratios[1.0]), np.array(ratios[0.0])
    if not (at_most > SPREAD * at_least).any():  # run times are all alike, and so would be their plans
        worlds = {1.0: worlds[1.0]}
    (world, conditions), others = worlds[1.0], {tail: worlds[tail] for tail in worlds if tail != 1.0}
    factor = sum(rates) / measured
    classes = Classes.of(
        deployment, setting.evidence, {name: each.class_shares for name, each in setting.arrivals.items()}
    )
    moving = None
    if moves and len(called) == 1:  # the level is one of those that the load moves between: it is tried as a whole
        moving = Followed({tail: as_measured(deployment, as_it_came, tail)[:2] for tail in worlds}, classes=classes)
    elif moves:
        moving = Followed(worlds, factor, is_shared=True, classes=classes)
    verdict = judge(
        world,
        conditions,
        rates,
        factor=factor,
        candidates=candidates,
        elsewhere=others,
        moving=moving,
        classes=classes,
        doubt=math.hypot(doubt_of_load(rates), doubt_of_runs(setting)),
        progress=progress,
        budget_s=budget_s,
    )
    name = deployment.applications[called[0]].name if called else ""
    levels = (
        _levels(as_it_came.arrivals[name], rates[called[0]])
        if moves and len(called) == 1 and name in as_it_came.arrivals
        else (1.0, 1.0)
    )
    return replace(
        verdict,
        levels=levels,
        lump=lump_of(as_it_came) if moves else max(lump_of(as_it_came), burst_of(as_it_came)),
        ratios=ratios[verdict.candidate.tail] if setting.residuals else (),
    )


def lump_of(setting: Setting) -> float:
    """So many times a count of queries wavers as much (its variance) as one of queries that come alone."""
    rows = [stretch.requests["rows"] for stretch in setting.arrivals.values() if len(stretch.requests)]
    if not rows:
        return 1.0
    together = np.concatenate(rows).astype(np.float64)
    return float((together**2).mean() / together.mean())


def burst_of(setting: Setting) -> float:
    """As `lump_of`, where single queries come in short bursts. What is less than a burst of two may be chance, and a
    stretch too short to tell a load that moves says nothing.
    """
    total, wavers = 0.0, 0.0
    for each in setting.arrivals.values():
        shortest = [figure for figure in each.dispersion[:-1] if figure > BURST]  # all but the window of a second
        is_long = each.span_ns >= 2 * LASTING_NS
        total, wavers = total + each.rate, wavers + each.rate * max(shortest if is_long else [], default=1.0)
    return wavers / total if total > 0 else 1.0


def doubt_of_load(rates: Sequence[float]) -> float:
    """The standard error of a load as a planner counts it before it has it judged, as a share of it."""
    counted = sum(rate * seconds for rate, seconds in zip(rates, known_after_s(np.array(rates)), strict=True))
    return 1.0 / math.sqrt(max(counted, 1.0))


def doubt_of_runs(setting: Setting) -> float:
    """That of the mean of measured run times. Workers that are slower by a share have so much more load."""
    samples = [sample for residuals in setting.residuals.values() for sample in residuals.by_bucket.values()]
    if not samples:
        return 0.0
    runs = np.concatenate(samples)
    return float(runs.std() / runs.mean() / math.sqrt(len(runs)))


def _levels(stretch: ArrivalStretch, rate: float) -> tuple[float, float]:
    """Between how many times this rate the load moved, by the half second."""
    levels = stretch.counts(LEVEL_NS) * (1e9 / LEVEL_NS) / rate
    return min(1.0, float(levels.min())), max(1.0, float(levels.max()))


def are_alike(
    figures: Mapping[str, float], others: Mapping[str, float], doubts: Mapping[str, float] | None = None
) -> bool:
    """Whether no figure that both have has drifted, and by more than chance: `doubts` are standard errors of how two
    of them differ, as shares.
    """
    doubts = doubts or {}

    def allowed(name: str) -> float:
        return min(max(math.log(DRIFT), CHANCE * doubts.get(name, 0.0)), math.log(CERTAIN))

    return all(
        name not in others or abs(math.log(value / others[name])) < allowed(name) for name, value in figures.items()
    )


def doubts_of(setting: Setting) -> dict[str, float]:
    """Of those figures that are known badly after some seconds: a variance of few counts, a share of few queries, and
    how late the latest batches end.
    """
    doubts = {
        f"{window} dispersion of {name}": math.sqrt(2 / max(stretch.span_ns / window_ns, 1.0))
        for name, stretch in setting.arrivals.items()
        for window, window_ns in zip(WINDOWS, WINDOWS_NS, strict=True)
    }
    for name, stretch in setting.arrivals.items():
        for figure, share in _shares(name, stretch):
            doubts[figure] = math.sqrt((1 - share) / (share * max(stretch.queries * sum(stretch.class_shares), 1.0)))
    return doubts | {"timer_ns": TIMER_DOUBT}


def _shares(application: str, stretch: ArrivalStretch) -> Iterator[tuple[str, float]]:
    for number, share in enumerate(stretch.class_shares):
        yield f"class {number} of {application}", min(max(share, LEAST_SHARE), 1.0)


def figures_of(setting: Setting, deployment: Deployment) -> dict[str, float]:
    """What is compared of two settings, each above zero."""
    slo_ns = min(application.slo_ns for application in deployment.applications)
    figures = dict(_figures(setting, LEAST_DELAY * slo_ns))
    for application in deployment.applications:
        if not application.has_evidence:
            continue
        figures[f"evidence of {application.name}"] = 2.0 if application.name in setting.evidence else 1.0
    return figures


def _figures(setting: Setting, least_delay_ns: float) -> Iterator[tuple[str, float]]:
    for name, stretch in setting.arrivals.items():
        if name in setting.evidence:
            yield from _shares(name, stretch)
        if len(stretch.requests):
            yield f"rows of {name}", stretch.mean_rows()
            for window, value in zip(WINDOWS, stretch.dispersion, strict=True):
                if math.isfinite(value):  # a short stretch does not tell of long windows
                    yield f"{window} dispersion of {name}", max(value, 1.0)
    for (label, kind), residuals in setting.residuals.items():
        runs = np.concatenate(list(residuals.by_bucket.values()))
        if len(runs) >= ENOUGH_RUNS:
            yield f"median of {label} on {kind}", float(np.median(runs))
            yield f"p95 of {label} on {kind}", float(np.quantile(runs, 0.95))
    for application in sorted({client.application for client in setting.clients}):
        askers = [client for client in setting.clients if client.application == application]
        yield f"clients of {application}", float(len(askers))
        yield f"bandwidth to clients of {application}", float(np.median([np.mean(each.bytes_per_s) for each in askers]))
        yield f"least bandwidth of {application}", float(min(min(each.bytes_per_s) for each in askers))
    for delay in ("control_ns", "data_ns", "timer_ns", "evidence_ns"):
        yield delay, max(getattr(setting.delays, delay), least_delay_ns)
