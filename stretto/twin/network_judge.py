"""The judge where clients' networks are known: candidates tried in the closed loop, with clients like those measured.

What a client sends depends on what it is told, so a candidate is tried as a planner that plans anew each half second,
not as one plan. Rounds are as in `judge`: all on a short stretch, the better ones on a longer one with their
neighbours, the best few on seeds that no earlier round has used. How clients' frames fall among each other stays as it
is for as long as they run, and one queue with one variant may be in time for most ways and miss a twentieth for some:
so the last round is of many short trials, each with clients drawn anew, and not of a few long ones.

A frame without an answer in time is worth nothing, and more than half a percent of them are dear: Jellyfish promises
deadlines first, accuracy second. So of the best few only those may win that are in time by more than the luck of a
trial, also behind networks somewhat worse, and until another verdict serves when clients come; where none is, the one
that misses least.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.verdict import Candidate, Promise, Verdict
from stretto.core.view import Planner, View
from stretto.planners.candidates import candidates_with_clients, make, neighbours, with_more
from stretto.planning.session import Session
from stretto.sim.network.run import simulate_network
from stretto.twin.clients import ClientConditions, at_rates, drawn, scaled_rates, smaller, worse_networks
from stretto.twin.conditional import Conditional
from stretto.twin.judge import best_of_another_planner

MOST_LATE = 0.004
LATE_PRICE = 3.0  # of accuracy, for each share of frames that is missed beyond that
HIGHER = 1.25  # a candidate serves until clients ask so many times as much, and must not break there
HIGHER_WEIGHT = 0.25
MOST_RATE = 400.0  # frames/s of a trial: more are tried in small
FRAMES = (800, 1_600, 1_600, 900)  # of a trial, by round
LEAST_S, MOST_S = 4.0, 30.0  # that it spans
WARM_S = 2.0
KEPT = (5, 3, 2)  # candidates after each round but the last
LAST_SEEDS = 12
FURTHER = 4  # steps of waiting beyond what was entered that a planner may take to be in time
CHECKS = 3  # trials behind worse networks, and under more load
AS_GOOD = 0.0005  # of accuracy: of candidates this near to the best the most careful is taken
SURE = 2.0  # standard errors of the misses
MORE = 1.25  # times the clients, rounded up, which may be there before another verdict serves
WORSE = 0.85  # of the bandwidths that were measured
MOST_LATE_THEN = 0.01
REPLAN_S = 0.5

Score = tuple[float, float, float]  # value, share answered right and on time, share missed


class _Court:
    def __init__(self, deployment: Deployment, setting: Conditional, clients: Sequence[ClientConditions]) -> None:
        self.deployment, self.clients = smaller(deployment, clients, MOST_RATE)
        self.setting = setting
        self.rate = sum(client.rate for client in self.clients)
        self.tried: set[Candidate] = set()
        self.plan_cpu_s = 0.0
        self._with_more: dict[Candidate, float] = {}

    def score(
        self,
        candidate: Candidate,
        frames: int,
        seed: int,
        factor: float = 1.0,
        network: float = 1.0,
        clients: Sequence[ClientConditions] = (),
    ) -> Score:
        """With clients that ask `factor` times as often, behind networks `network` times as fast: value, share answered
        right and on time, share missed; −∞ where it cannot plan for them. `clients`: these instead.
        """
        clients = worse_networks(scaled_rates(clients or self.clients, factor), network)
        seconds = WARM_S + min(max(frames / max(self.rate, 1e-9), LEAST_S), MOST_S)
        self.tried.add(candidate)
        try:
            result = simulate_network(
                self.deployment,
                Session(self._timed(candidate), knows_networks=True),  # as the judged planner does
                drawn(clients, seconds, seed),
                seconds=seconds,
                seed=seed,
                service=self.setting.service(),
                delays=self.setting.delays,
                replan_s=REPLAN_S,
                warmup_s=WARM_S,
            ).summary
        except Exception:  # a StrettoError, or a bug of a planner: whatever it is, others can
            return -math.inf, 0.0, 1.0
        value = result.correct_on_time - LATE_PRICE * max(0.0, result.miss_rate - MOST_LATE)
        return value, result.correct_on_time, result.miss_rate

    def last_scores(self, candidate: Candidate, seed: int, most_late: float = 1.0) -> list[Score]:
        """Of the last round; no more of it when so many are missed that their mean will be above `most_late`."""
        scores: list[Score] = []
        while len(scores) < LAST_SEEDS and sum(_missed(scores)) <= most_late * LAST_SEEDS:
            scores.append(self.score(candidate, FRAMES[3], seed + len(scores)))
        return scores

    def is_in_time(self, candidate: Candidate, missed: Sequence[float], seed: int, careful: Candidate) -> bool:
        """Surely, by what its last trials missed, behind worse networks too, and when clients come: then no more than a
        little, or than the most careful one, for there may be more of them than can be served.
        """
        if fmean(missed) + SURE * stdev(missed) / math.sqrt(len(missed)) > MOST_LATE:
            return False
        seeds = range(seed, seed + CHECKS)
        if fmean(self.score(candidate, FRAMES[3], each, network=WORSE)[2] for each in seeds) > MOST_LATE_THEN:
            return False
        more = self._missed_with_more(candidate, seeds)
        return more <= MOST_LATE_THEN or more <= self._missed_with_more(careful, seeds)

    def _missed_with_more(self, candidate: Candidate, seeds: range) -> float:
        """With further clients like these. Who has one variant for all cannot step back by itself then, and neither can
        who reckons with no waiting because nobody shares a worker yet.
        """
        if candidate not in self._with_more:
            more = [self.clients[place % len(self.clients)] for place in range(math.ceil(MORE * len(self.clients)))]
            scores = [self.score(candidate, FRAMES[3], seed, clients=more) for seed in seeds]
            self._with_more[candidate] = fmean(score[2] for score in scores)
        return self._with_more[candidate]

    def _timed(self, candidate: Candidate) -> Planner:
        planner = make(candidate)

        def timed(view: View) -> Plan:
            began = time.process_time()
            plan = planner(view)
            self.plan_cpu_s += time.process_time() - began
            return plan

        return timed

    def best(self, candidates: Sequence[Candidate], frames: int, seed: int, count: int) -> list[Candidate]:
        """With a part of the value at a higher load. A candidate that cannot plan is left out; of those that look at
        clients one is always among the best, for fixed variants that win now may not be in time when clients come.
        """

        def value(candidate: Candidate) -> float:
            above = self.score(candidate, frames // 2, seed, HIGHER)[0]
            return (1 - HIGHER_WEIGHT) * self.score(candidate, frames, seed)[0] + HIGHER_WEIGHT * above

        values = {candidate: value(candidate) for candidate in dict.fromkeys(candidates)}
        able = [candidate for candidate in values if values[candidate] > -math.inf]
        ranked = sorted(able, key=lambda candidate: -values[candidate])
        looking = [candidate for candidate in ranked if _carefulness(candidate) >= 0][:1]
        return [*ranked[:count], *(candidate for candidate in looking if candidate not in ranked[:count])]


def _missed(scores: Sequence[Score]) -> list[float]:
    return [missed for _, _, missed in scores]


def _carefulness(candidate: Candidate) -> float:
    """How long it takes a batch to wait in its planning; those that do not look at that are the least careful."""
    return float(dict(candidate.options).get("queueing", -1.0))


def _correct(scores: Sequence[Score]) -> float:
    return fmean(correct for _, correct, _ in scores)


def _hasty(scores: dict[Candidate, list[Score]], sure: Sequence[Candidate]) -> list[Candidate]:
    """Of those of each planner that are not in time the most careful; those that answered most right first."""
    hasty = {each.planner: each for each in sorted(scores, key=_carefulness) if each not in sure}
    return sorted(hasty.values(), key=lambda each: -_correct(scores[each]))


def judge_networks(
    deployment: Deployment,
    setting: Conditional,
    clients: Sequence[ClientConditions],
    rates: tuple[float, ...],
    *,
    candidates: Sequence[Candidate] | None = None,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Verdict:
    """The best candidate for clients like these that ask so much together."""
    began = time.process_time()
    case = _Court(deployment, setting, at_rates(deployment, clients, rates))
    tell = progress or (lambda share: None)
    entered = candidates_with_clients(case.deployment, case.rate) if candidates is None else tuple(candidates)
    better = case.best(entered, FRAMES[0], seed, KEPT[0])
    tell(0.4)
    best = case.best(better, FRAMES[1], seed + 1, KEPT[1])
    tell(0.6)
    close = [near for candidate in best[:1] for near in neighbours(candidate)]
    best = case.best([*best, *close], FRAMES[2], seed + 2, KEPT[2])
    if not best:
        raise StrettoError("no candidate can plan for these clients at this load")
    # The most careful of those that look at clients is kept aside, for when the others are not in time.
    careful = max(entered, key=_carefulness)
    tell(0.8)
    scores = {each: case.last_scores(each, seed + 3) for each in best}
    first_check = seed + 3 + LAST_SEEDS
    sure = [each for each in best if case.is_in_time(each, _missed(scores[each]), first_check, careful)]
    # Rounds before this one take the hasty for the best. With more care the same planner may be in time, and still be
    # more accurate than any other.
    for hasty in _hasty(scores, sure):
        if _correct(scores[hasty]) <= max((_correct(scores[each]) for each in sure), default=0.0):
            break
        for each in with_more(hasty, "queueing", FURTHER):
            if any(
                candidate.planner == each.planner and _carefulness(candidate) <= _carefulness(each)
                for candidate in sure
            ):
                break
            trials = case.last_scores(each, seed + 3, MOST_LATE)
            if len(trials) == LAST_SEEDS and case.is_in_time(each, _missed(trials), first_check, careful):
                best.append(each)
                sure.append(each)
                scores[each] = trials
    if not sure and careful not in scores:
        best.append(careful)
        scores[careful] = case.last_scores(careful, seed + 3)
        sure = [careful] if case.is_in_time(careful, _missed(scores[careful]), first_check, careful) else []
    values = {candidate: fmean(score[0] for score in scores[candidate]) for candidate in best}
    least = min(best, key=lambda candidate: fmean(_missed(scores[candidate])))
    able = sure or [least]
    as_good = max(values[candidate] for candidate in able) - AS_GOOD
    winner = max((each for each in able if values[each] >= as_good), key=_carefulness)
    runner_up = best_of_another_planner(values, winner)
    ahead = [score[0] - other[0] for score, other in zip(scores[winner], scores[runner_up], strict=True)]
    correct, late = ([score[place] for score in scores[winner]] for place in (1, 2))
    root = math.sqrt(LAST_SEEDS)
    tell(1.0)
    verdict = Verdict(
        rates,
        winner,
        Promise(fmean(correct), fmean(late), stdev(correct) / root, stdev(late) / root),
        runner_up,
        tried=len(case.tried),
        cpu_s=time.process_time() - began,
        plan_cpu_s=case.plan_cpu_s,
    )
    if not all(math.isfinite(each) for each in ahead):
        return verdict
    return replace(verdict, ahead=fmean(ahead), ahead_error=stdev(ahead) / root)
