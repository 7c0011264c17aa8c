"""Judges a deployment over a range of loads, under one setting: what `stretto tune` and `stretto profile` write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.verdict import Verdict
from stretto.planners.candidates import candidates_without_tables
from stretto.planners.judged.ledger import RUNG, RUNG_OF_SEVERAL
from stretto.planners.parts.choose import choose_variants
from stretto.sim.bounds import fluid_goodput
from stretto.twin.library import Judgement, Library, Scope
from stretto.twin.live import figures_of, judge_setting
from stretto.twin.setting import Setting
from stretto.twin.stretch import WINDOWS_NS, ArrivalStretch

EASY = 0.5  # of what the most accurate variants can answer: below, all plans are the same
HIGH = 1.1  # of capacity: above, nothing helps much
MOST_RATE = 20_000.0  # queries/s for each worker: more are never handed to one, however quick its fastest variant is
MOST_LOADS = 20
START_LOADS = 8
PRESUMED = (1.0,) * 9 + (2.0,)  # run times of a server that nobody has measured, over those of its profiles

Rates = tuple[float, ...]
Progress = Callable[[float], None]
Judge = Callable[[Callable[[], Verdict]], Verdict | None]  # does the work, elsewhere perhaps; None: no time is left
Map = Callable[[Callable[[Rates], Verdict], Iterable[Rates]], Iterator[Verdict]]


def as_profiled(deployment: Deployment, delays: Delays | None = None, gamma_shape: float = 1.0) -> Setting:
    """Conditions before anything was measured: run times as the profiles spread them, and arrivals without memory, or
    with gamma gaps. Each application has the load that would keep all workers as busy as that of any other one.
    """
    rates = [_capacity(deployment, number) for number in range(len(deployment.applications))]
    dispersion = (math.nan if gamma_shape == 1 else 1.0 / gamma_shape,) * len(WINDOWS_NS)
    arrivals = {
        application.name: ArrivalStretch(rate, dispersion)
        for application, rate in zip(deployment.applications, rates, strict=True)
    }
    return Setting(arrivals, delays=delays or Delays())


def _capacity(deployment: Deployment, application: int) -> float:
    shares = [float(number == application) for number in range(len(deployment.applications))]
    return fluid_goodput(deployment, shares)


def shares_of(deployment: Deployment, setting: Setting) -> Rates:
    """What part of the queries each application has, as measured."""
    names = [application.name for application in deployment.applications]
    rates = [setting.arrivals[name].rate if name in setting.arrivals else 0.0 for name in names]
    if sum(rates) <= 0:
        known = ", ".join(name for name, stretch in setting.arrivals.items() if stretch.rate > 0)
        raise StrettoError(
            f"nothing came for {', '.join(names)} in this setting{f', which is of {known}' if known else ''}; measure "
            "one while the same applications are called"
        )
    return tuple(rate / sum(rates) for rate in rates)


def loads_between(
    deployment: Deployment, shares: Rates, low: float | None = None, high: float | None = None, most: int = MOST_LOADS
) -> tuple[Rates, ...]:
    """Rates in the middle of rungs that the planner tells apart: of all of them, or of so many evenly among them.

    They go from where the most accurate variants have time to spare to a little beyond capacity, or as told (in
    queries/s of all applications together).
    """
    capacity = fluid_goodput(deployment, shares)
    if capacity <= 0:
        raise StrettoError("no variant answers within the SLO on these workers; add a faster one, or raise the SLO")
    if low is None:
        low = EASY * fluid_goodput(deployment, shares, variants=choose_variants(deployment))
    if high is None:
        high = min(HIGH * capacity, MOST_RATE * len(deployment.workers))
    step = RUNG_OF_SEVERAL if len(shares) > 1 else RUNG
    last = math.floor(math.log(max(high, 1.0), step) + 1e-9)
    first = min(last, math.ceil(math.log(max(low, 1.0), step) - 1e-9))
    rungs = range(first, last + 1, math.ceil((last + 1 - first) / most))
    return tuple(tuple(step**rung * share for share in shares) for rung in rungs)


def tuned(
    deployment: Deployment,
    setting: Setting,
    loads: Sequence[Rates],
    conditions: str,
    *,
    run: Map = map,
    progress: Progress | None = None,
    is_measured: bool = True,
    budget_s: float = math.inf,
) -> Library:
    """`run` maps a function over loads, here or in other processes; what comes out does not depend on it. `budget_s`
    bounds the processor time of each load; where it is spent, what comes out depends on how fast this machine is.
    """
    verdicts = []
    for verdict in run(partial(judge_setting, deployment, setting, budget_s=budget_s), loads):
        verdicts.append(verdict)
        if progress is not None:
            progress(len(verdicts) / len(loads))
    return library_of_verdicts(deployment, setting if is_measured else None, verdicts, conditions)


def library_of_verdicts(
    deployment: Deployment, measured: Setting | None, verdicts: Sequence[Verdict], conditions: str
) -> Library:
    figures = {} if measured is None else figures_of(measured, deployment)
    ordered = sorted(verdicts, key=lambda verdict: sum(verdict.rates))
    timeless = (replace(verdict, cpu_s=0.0, plan_cpu_s=0.0) for verdict in ordered)
    return Library(Scope.of(deployment), tuple(Judgement(verdict, figures) for verdict in timeless), conditions)


def start_library(deployment: Deployment, delays: Delays, judge: Judge, progress: Progress | None = None) -> Library:
    """As profiled, over a few loads, the middle ones first, until `judge` has no time for more.

    Of candidates without tables: at the start of a server there is no time to make any, and nobody knows whether its
    load will move. Nor does anybody know what else runs beside it: one batch in ten is taken to last twice the mean
    that was profiled, the others just that mean, so that no plan wins by a hair that leaves no slack at all.
    """
    setting = replace(as_profiled(deployment, delays), presumed=PRESUMED)
    candidates = candidates_without_tables(deployment)
    loads = loads_between(deployment, shares_of(deployment, setting), most=START_LOADS)
    verdicts: list[Verdict] = []
    for number in halving(len(loads)):
        verdict = judge(partial(judge_setting, deployment, setting, loads[number], candidates=candidates))
        if verdict is None:
            break
        verdicts.append(verdict)
        if progress is not None:
            progress(len(verdicts) / len(loads))
    conditions = "as profiled, one batch in ten twice as long, Poisson arrivals"
    return library_of_verdicts(deployment, None, verdicts, conditions)


def halving(count: int) -> Iterator[int]:
    """0 … count − 1, each next one far from those before: the middle, the quarters, and so on."""
    yielded: set[int] = set()
    parts = 2
    while len(yielded) < count:
        for part in range(1, parts):
            place = part * count // parts
            if place not in yielded:
                yielded.add(place)
                yield place
        parts *= 2
