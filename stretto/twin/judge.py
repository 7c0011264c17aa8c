"""The judge: candidates tried in the simulator, on the same arrivals, under measured conditions; the best one wins.

Successive halving: all candidates on a short stretch, the better ones on a longer one, the best few on several. The
winner is refined: its neighbours among the options are tried too. What makes plans quicker to make in the first rounds
may be better as well, so the last round has the best one both ways. Of those that are as good as the best in the last
round, the one that stands stress best is taken: less and more load, surges, a worker that is lost, a stall of all
workers that leaves an old queue behind; who breaks under it is not taken at all. What is promised comes from trials of
the winner alone, on seeds that no round has used: of several the one that luck favours wins, and what it had there it
will not have again. They are spread over the loads that the measured one may really be: near saturation 1% of it is a
point.

A budget of processor time ends it sooner, with the best that was found: no more candidates are tried then, and those
that are compared had the same trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import NormalDist, fmean, stdev

import numpy as np

from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Plan
from stretto.core.profile import NS_PER_S
from stretto.core.verdict import Candidate, Promise, Verdict
from stretto.planners.candidates import (
    by_class,
    candidates_for,
    has_choice,
    hears_of_classes,
    make,
    neighbours,
    rough,
)
from stretto.planners.judged.planner import LOOK_NS
from stretto.planners.registry import planner_entry
from stretto.planning.session import Rhythm, Session
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.simulator import MAX_SECONDS, Fault, FaultKind
from stretto.twin.budget import Budget
from stretto.twin.classes import Classes
from stretto.twin.conditional import Conditional, Drawn, Score, Worlds, bounded, tried
from stretto.twin.followed import Followed
from stretto.twin.surges import Surges

LEAST_SLOS = 25  # that a trial spans
WARM_SLOS = 3
FIRST_QUERIES, SECOND_QUERIES, LAST_QUERIES, STRESS_QUERIES = 4_000, 10_000, 16_000, 6_000
SECOND, LAST = 12, 4  # candidates in those rounds
SATISFIED = 0.003  # of accuracy, below the bound
LAST_SEEDS = 4
MOST_MORE, MORE_SEEDS = 3, 100  # so often as many seeds again, from numbers so far on
APART, MATTERS = 2.0, 0.002  # standard errors between two that are told apart, and one of accuracy that is too large
PROMISE_SEEDS = 5
FOLLOWED, FOLLOWED_SEEDS = 3, 3  # candidates in the last round for a load that moves, where a trial is longer
FOLLOWED_FIRST = 0.36  # of such a trial, for all that enter
STRESS_LOADS = (0.8, 1.3)
SURGE, SURGE_SHARE, SURGE_SLOS = 1.8, 0.25, 20.0  # times the load, for which part of the time, how often
STALL_SLOS = 2.0  # for which no worker works
AS_GOOD = 0.0005  # of accuracy: candidates this near to the best are told apart by stress
BROKEN = 0.1  # of accuracy below the best under the same stress
HIGHER = 1.03  # a plan serves until the load has risen by so much, and must not break there
HIGHER_WEIGHT = 0.25
MOST_IN_WINDOW = 256  # queries: more are not scheduled window by window, which would take too long
MOST_WINDOWS = 1_000  # of a trial, where some candidate schedules by them
FEWEST_QUERIES = 200  # in so many windows: fewer tell nobody apart
NOBODY = "no candidate can plan for these applications at this load"


class _Court:
    """One case: a deployment at one load."""

    def __init__(
        self,
        worlds: Worlds,
        factor: float,
        rates: tuple[float, ...],
        budget: Budget,
        *,
        is_steady: bool,
        classes: Classes | None,
    ):
        self.budget, self.is_steady, self._classes = budget, is_steady, classes
        self.worlds, self.factor, self.rates = worlds, factor, rates
        self.deployment, self.setting = worlds[1.0]
        self.longest_s = max(application.slo_ns for application in self.deployment.applications) / 1e9
        self.window_s = Rhythm(LOOK_NS / NS_PER_S, if_swapped=True).period_for(self.deployment)
        self.in_doubt = False  # classes are: for what is promised, not for who is best
        self.has_windows = False  # some candidate schedules by them
        self._plans: dict[Candidate, Plan | None] = {}
        self._services = {tail: conditions.service() for tail, (_, conditions) in worlds.items()}
        self._arrivals: dict[tuple[float, float, int, bool], Drawn] = {}  # the same for all candidates of a round
        self.plan_cpu_s = 0.0
        self.is_rough = True
        self.tried = 0

    def plan(self, candidate: Candidate) -> Plan | None:
        """What the candidate would have served at this load; None where it cannot plan for it."""
        if candidate not in self._plans:
            began = time.process_time()
            try:
                session = Session(make(rough(candidate) if self.is_rough else candidate))
                conditions = Conditions(delays=self.setting.delays)
                deployment = self.worlds[candidate.tail][0]
                self._plans[candidate] = session.first(deployment, 0, conditions, expected_rates=self.rates).plan
            except Exception:  # a StrettoError, or a bug of a planner: whatever it is, others can
                self._plans[candidate] = None
            self.plan_cpu_s += time.process_time() - began
        return self._plans[candidate]

    def may_be_by_windows(self) -> bool:
        """Whether schedules by windows can be tried: there are not too many queries for them, nor too many windows."""
        in_window = sum(self.rates) * self.window_s
        is_short = LEAST_SLOS * self.longest_s <= 2 * MOST_WINDOWS * self.window_s
        return is_short and FEWEST_QUERIES / MOST_WINDOWS <= in_window <= MOST_IN_WINDOW

    def whole(self) -> None:
        """From now on plans are as they would be served."""
        self.tried += len(self._plans)
        self.is_rough = False
        self._plans.clear()

    def score(
        self,
        candidate: Candidate,
        queries: int,
        seed: int,
        factor: float = 1.0,
        *,
        surges: bool = False,
        worker_lost: bool = False,
        stalled: bool = False,
    ) -> Score:
        plan = self.plan(candidate)
        if plan is None:
            return Score()
        rate = max(sum(self.rates), 1e-9)
        most_s = MOST_WINDOWS * self.window_s if self.has_windows else math.inf
        seconds = min(max(min(queries / rate, most_s), LEAST_SLOS * self.longest_s), 0.9 * MAX_SECONDS)
        warmup_s = min(WARM_SLOS * self.longest_s, 0.2 * seconds)
        run = partial(
            tried,
            self.worlds[candidate.tail][0],
            drawn=self._drawn(seconds, factor, seed, surges),
            seconds=seconds,
            warmup_s=warmup_s,
            seed=seed,
            service=self._services[candidate.tail],
            expected_rates=self.rates,
            faults=self._faults(warmup_s, worker_lost=worker_lost, stalled=stalled),
        )
        if not planner_entry(candidate.planner).by_windows:
            evidence = Delays(evidence_ns=self.setting.delays.evidence_ns)  # the other delays are in the plan
            return run(planner=lambda view: plan, by_windows=False, delays=evidence)
        try:  # it is asked again and again, and may fail any time
            session = Session(bounded(make(candidate)))
            return run(planner=session, by_windows=True, delays=self.setting.delays, replan_s=self.window_s)
        except Exception:
            return Score()

    def _faults(self, second: float, *, worker_lost: bool, stalled: bool) -> list[Fault]:
        """One worker that goes and stays away, or all of them for some SLOs: an old queue waits when they are back."""
        count = len(self.deployment.workers)
        if stalled:
            back = second + STALL_SLOS * self.longest_s
            moments = ((second, FaultKind.LEFT), (back, FaultKind.JOINED))
            return [Fault(moment, worker, kind) for moment, kind in moments for worker in range(count)]
        return [Fault(second, count - 1, FaultKind.LEFT)] if worker_lost else []

    def _drawn(self, seconds: float, factor: float, seed: int, surges: bool) -> Drawn:
        key = (seconds, factor, seed, surges)
        if key not in self._arrivals:
            source = self.setting.source(self.factor * factor)
            if surges:
                source = Surges(source, SURGE, SURGE_SHARE, SURGE_SLOS * self.longest_s)
            self._arrivals[key] = Drawn.of(source, self.deployment, seconds, seed, self._classes, self.in_doubt)
        return self._arrivals[key]

    def stressed(self, candidate: Candidate, seed: int) -> float:
        """The mean over all kinds of stress."""
        values = [self.score(candidate, STRESS_QUERIES, seed, factor).value for factor in STRESS_LOADS]
        values.append(self.score(candidate, STRESS_QUERIES, seed, surges=True).value)
        values.append(self.score(candidate, STRESS_QUERIES, seed, stalled=True).value)
        if len(self.deployment.workers) > 1:
            values.append(self.score(candidate, STRESS_QUERIES, seed, worker_lost=True).value)
        return fmean(values)

    def to_refine(self, best: Sequence[Candidate]) -> list[Candidate]:
        """The two best; where applications have one variant each, and planners few options, the best of another planner
        too.
        """
        others = [] if has_choice(self.deployment) else [each for each in best if each.planner != best[0].planner]
        return list(dict.fromkeys([*best[:2], *others[:1]]))

    def near(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """With other options, or for another tail of run times."""
        near: list[Candidate] = []
        for candidate in candidates:
            near += neighbours(candidate)
            near += by_class(candidate) if hears_of_classes(self.deployment) else ()
            near += [replace(candidate, tail=tail) for tail in self.worlds if tail != candidate.tail]
        return near

    def told_apart(self, candidates: Sequence[Candidate], seed: int) -> dict[Candidate, list[Score]]:
        """Scores on the same seeds; on more of them as long as it may be chance who is best, and it matters."""
        scores: dict[Candidate, list[Score]] = {candidate: [] for candidate in candidates}
        firsts = (seed, *(seed + MORE_SEEDS * extra for extra in range(1, MOST_MORE + 1)))
        for first in firsts:
            seeds = self.budget.seeds(first, LAST_SEEDS)
            for candidate in candidates:
                scores[candidate] += [self.score(candidate, LAST_QUERIES, number) for number in seeds]
            if self.budget.is_spent or not is_undecided(list(scores.values())):
                break
        return scores

    def may_gain(self, candidate: Candidate) -> bool:
        """Whether the best that is known leaves anything to be had below the fluid bound."""
        bound = fluid_accuracy(self.deployment, self.rates).correct_share
        return self.score(candidate, SECOND_QUERIES, 0).correct < bound - SATISFIED

    def ranked(self, candidates: Sequence[Candidate], queries: int, seed: int) -> list[Candidate]:
        """The best first; who cannot plan is left out. Who is of the worse half at the load is not tried above it,
        and of a load that moves nobody is: the last round has all of its levels.
        """
        values = self.budget.values(candidates, lambda candidate: self.score(candidate, queries, seed).value)
        able = sorted((each for each in values if values[each] > -math.inf), key=lambda candidate: -values[candidate])
        if not self.is_steady:
            return able
        better = able[: max(2 * LAST, (len(able) + 1) // 2)]
        above = self.budget.values(
            better, lambda candidate: self.score(candidate, max(queries // 2, 1), seed, HIGHER).value
        )
        if len(above) == len(better):  # else some had no time for it
            for candidate in better:
                values[candidate] = (1 - HIGHER_WEIGHT) * values[candidate] + HIGHER_WEIGHT * above[candidate]
        return [*sorted(better, key=lambda candidate: -values[candidate]), *able[len(better) :]]


def judge(
    deployment: Deployment,
    setting: Conditional,
    rates: tuple[float, ...],
    *,
    factor: float = 1.0,
    candidates: Sequence[Candidate] | None = None,
    elsewhere: Worlds | None = None,
    moving: Followed | None = None,
    classes: Classes | None = None,
    doubt: float = 0.0,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
    budget_s: float = math.inf,
) -> Verdict:
    """The best candidate for these rates, which are `factor` times the setting's. `elsewhere`: the same with profiles
    at other tails of the measured run times; candidates are tried there, too. `moving`: the closed loop, where the
    load moves; the last round is run there, and all but the first where workers are shared. `classes`: of queries,
    where there is evidence of them. `doubt`: the standard error, as a share, with which load and run times are known;
    what is promised reckons with it. `budget_s`: of processor time.
    """
    budget = Budget(budget_s)
    worlds = {1.0: (deployment, setting), **(elsewhere or {})}
    case = _Court(worlds, factor, rates, budget, is_steady=moving is None, classes=classes)
    tell = progress or (lambda share: None)
    entered = candidates_for(deployment) if candidates is None else tuple(candidates)
    if not case.may_be_by_windows():
        entered = tuple(each for each in entered if not planner_entry(each.planner).by_windows)
    case.has_windows = any(planner_entry(each.planner).by_windows for each in entered)
    if moving is not None:
        moving.window_s, moving.has_windows = case.window_s, case.has_windows
    entered = tuple(replace(each, tail=tail) for tail in (1.0, 0.0) if tail in case.worlds for each in entered)
    part = 1.0 if len(case.worlds) == 1 else 2 / 3  # of twice as many candidates
    queries, more = int(FIRST_QUERIES * part), int(SECOND_QUERIES * part)
    best = case.ranked(entered, queries, seed)
    if moving is None or not moving.is_shared:
        tell(0.4)
        led = best[0].planner if best and case.has_windows else ""  # trials by windows hold few queries
        best = _best(case.ranked(_best(best, SECOND), more, seed + 1), LAST, led)
        tell(0.6)
        best = _best(case.ranked([*best, *case.near(case.to_refine(best))], more, seed + 2), LAST, led)
        tell(0.7)
    case.whole()
    # Of a load that moves, a dear plan for one level is of no use at the next.
    if candidates is None and (not best or (case.is_steady and not budget.is_spent and case.may_gain(best[0]))):
        dear = [replace(each, tail=best[0].tail if best else 1.0) for each in candidates_for(deployment, dear=True)]
        best = case.ranked([*best, *dear], SECOND_QUERIES, seed + 2)[:LAST]
    if not best:
        raise StrettoError(NOBODY)
    tell(0.8)
    if moving is None:
        both_ways = dict.fromkeys([best[0], rough(best[0]), best[-1], *map(rough, best[1:2]), *best])
        best = budget.first(list(both_ways), max(len(best), LAST))
        scores = case.told_apart(best, seed + 3)
        stressed = {candidate: case.stressed(candidate, seed + 3 + LAST_SEEDS) for candidate in best}
    else:
        scores, stressed = _followed(case, moving, best, seed + 3)
    values = {candidate: fmean(score.value for score in scores[candidate]) for candidate in scores}
    values = {each: value for each, value in values.items() if min(value, stressed[each]) > -math.inf}
    if not values:  # all of them failed
        raise StrettoError(NOBODY)
    winner = steadiest(values, {each: stressed[each] for each in values})
    fresh = seed + 4 + LAST_SEEDS
    case.in_doubt = True
    if moving is None:
        seeds = budget.seeds(fresh, PROMISE_SEEDS)
        promised = [
            case.score(winner, LAST_QUERIES, number, factor)
            for number, factor in zip(seeds, loads_in_doubt(doubt, len(seeds)), strict=True)
        ]
    else:
        moving.in_doubt = True
        promised = [moving.score(winner, number) for number in budget.seeds(fresh, FOLLOWED_SEEDS)]
    runner_up = best_of_another_planner(values, winner)
    ahead = [a.value - b.value for a, b in zip(scores[winner], scores[runner_up], strict=True)]
    correct, late = ([getattr(score, name) for score in promised] for name in ("correct", "late"))
    root = math.sqrt(len(ahead))
    apart = math.sqrt(1 + 1 / len(promised))  # a stretch as long as a trial, from the mean of those
    tell(1.0)
    return Verdict(
        rates,
        winner,
        Promise(fmean(correct), fmean(late), stdev(correct) * apart, stdev(late) * apart),
        runner_up,
        fmean(ahead),
        stdev(ahead) / root,
        case.tried + len(case._plans),
        budget.used_s,
        case.plan_cpu_s + (0.0 if moving is None else moving.plan_cpu_s),
        stressed[winner],
    )


def _followed(
    court: _Court, case: Followed, best: Sequence[Candidate], seed: int
) -> tuple[dict[Candidate, list[Score]], dict[Candidate, float]]:
    """Scores of the best few in the closed loop, and what they stand there at a higher load."""
    budget = court.budget
    last = case.ranked(case.entrants(best), seed, FOLLOWED_FIRST, budget)
    if case.is_shared:
        last = case.ranked([*last[:FOLLOWED], *court.near(last[:2])], seed, FOLLOWED_FIRST, budget)
    last, seeds = budget.first(last, FOLLOWED), budget.seeds(seed + 1, FOLLOWED_SEEDS)
    scores = {each: [case.score(each, number) for number in seeds] for each in last}
    return scores, {each: case.score(each, seed, max(STRESS_LOADS), part=FOLLOWED_FIRST).value for each in last}


def _best(ranked: Sequence[Candidate], count: int, led: str = "") -> list[Candidate]:
    """The first ones, and the best of each planner that was tried in a rougher form than it would serve in. Where all
    of the first are forms of one planner, the last of them gives way to another planner: forms differ by little, and a
    short trial that all of them were lucky in would else decide against everybody else. It is the planner that `led`
    the first round, if it is named and has no place otherwise, else the one that is best now.
    """
    first_of = {candidate.planner: candidate for candidate in reversed(ranked)}
    others = [each for each in ranked[count:] if each.planner != ranked[0].planner]
    if led in first_of and rough(first_of[led]) == first_of[led]:
        others.sort(key=lambda each: each.planner != led)
    best = list(ranked[:count])
    if others and all(each.planner == ranked[0].planner for each in best):
        best[-1] = others[0]
    return [*best, *(each for each in first_of.values() if rough(each) != each and each not in best)]


def best_of_another_planner(values: Mapping[Candidate, float], winner: Candidate) -> Candidate:
    """The runner-up: where the winner fails, its own other forms may fail for the same reason. So it is a form of
    another planner where there is one, else the best of the others, else the winner itself.
    """
    others = [candidate for candidate in values if candidate != winner]
    of_another = [candidate for candidate in others if candidate.planner != winner.planner]
    return max(of_another or others, key=lambda candidate: values[candidate], default=winner)


def loads_in_doubt(doubt: float, count: int) -> list[float]:
    """So many factors by which a load may differ from what was counted, whose standard error is `doubt`: the values
    that a normal sample of this size has in order, on average.
    """
    chances = [(number + 0.625) / (count + 0.25) for number in range(count)]
    return [max(1.0 + doubt * NormalDist().inv_cdf(chance), 0.1) for chance in chances]


def is_undecided(scores: Sequence[Sequence[Score]]) -> bool:
    """Whether another than the best on these trials may be better by as much as matters."""
    values = np.array([[score.value for score in each] for each in scores])
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) < 2:
        return False
    behind = values[values.mean(axis=1).argmax()] - values
    error = behind.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    return bool(((error > MATTERS) & (behind.mean(axis=1) < APART * error)).any())


def steadiest(values: Mapping[Candidate, float], stressed: Mapping[Candidate, float]) -> Candidate:
    """Of those that are as good as the best one that does not break under stress, the one that stands it best."""
    most = max(stressed.values())
    sound = [candidate for candidate in values if stressed[candidate] >= most - BROKEN]
    best = max(values[candidate] for candidate in sound)
    return max((each for each in sound if values[each] >= best - AS_GOOD), key=lambda each: stressed[each])
