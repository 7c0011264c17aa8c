"""A judge on the spot, for simulations: who asks waits for the verdict, or the fleet. Both are remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.deployment import Deployment
from stretto.core.verdict import Candidate, Verdict
from stretto.twin.clients import are_networked, at_rates
from stretto.twin.fleets import Rates, cheapest_judged
from stretto.twin.live import judge_setting
from stretto.twin.setting import Setting
from stretto.twin.stretch import ArrivalStretch

STEP = 1.02  # between rates that fleets are judged for
NO_STEP = -10_000  # of a rate of 0


class SpotJudge:
    """A planner's JudgePort. `setting` is asked for when the first case comes."""

    def __init__(self, setting: Callable[[Deployment], Setting]) -> None:
        self.verdicts: list[Verdict] = []  # all of them
        self._of_case: dict[Hashable, Verdict] = {}
        self.broken_promises = 0
        self._setting_of = setting
        self._setting: Setting | None = None
        self._deployment: Deployment | None = None
        self._new: list[Verdict] = []

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        return ()

    def ask(self, deployment: Deployment, rates: tuple[float, ...]) -> None:
        if self._setting is None or deployment is not self._deployment:
            self._setting, self._deployment = self._setting_of(deployment), deployment
            self.verdicts.clear()
            self._of_case.clear()
        case = self._case(deployment, self._setting, rates)
        if case not in self._of_case:
            self._of_case[case] = judge_setting(deployment, self._setting, rates)
            self.verdicts.append(self._of_case[case])
        self._new.append(replace(self._of_case[case], rates=rates))

    @staticmethod
    def _case(deployment: Deployment, setting: Setting, rates: tuple[float, ...]) -> Hashable:
        """Rates that stand for the same clients are one case: 99 and 101 queries/s of clients that ask 25 times."""
        if are_networked(deployment, setting.clients):
            return at_rates(deployment, setting.clients, rates)
        return rates

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        new, self._new = self._new, []
        return new

    def follows(self, rates: tuple[float, ...]) -> None:
        pass

    def broken(self, verdict: Verdict, late: float) -> None:
        self.broken_promises += 1


def fleet_judge(
    deployment: Deployment, setting: Setting, needs: FleetNeeds, candidates: Sequence[Candidate] | None = None
) -> Callable[[Rates], JudgedFleet]:
    """Says the cheapest fleet for rates that come evenly; StrettoError where none is enough. `candidates`: what it
    would be served by; None: whatever is best. Rates a few percent apart have one answer, for the highest of them.
    """
    names = [application.name for application in deployment.applications]

    def judged(fleet: Deployment, rates: Rates) -> Verdict:
        arrivals = {name: ArrivalStretch(rate) for name, rate in zip(names, rates, strict=True)}
        return judge_setting(fleet, replace(setting, arrivals=arrivals), rates, candidates=candidates)

    @cache
    def answer(steps: tuple[int, ...]) -> JudgedFleet:
        rates = tuple(STEP**step if step > NO_STEP else 0.0 for step in steps)
        return cheapest_judged(deployment, rates, needs, judged)

    return lambda rates: answer(tuple(math.ceil(math.log(rate, STEP)) if rate > 0 else NO_STEP for rate in rates))
