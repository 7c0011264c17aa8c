"""A judge on the spot, for simulations: who asks waits for the verdict. Verdicts are remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.core.deployment import Deployment
from stretto.core.verdict import Verdict
from stretto.twin.live import judge_setting
from stretto.twin.setting import Setting


class SpotJudge:
    """A planner's JudgePort. `setting` is asked for when the first case comes."""

    def __init__(self, setting: Callable[[Deployment], Setting]) -> None:
        self.verdicts: list[Verdict] = []  # all of them
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
        verdict = next((known for known in self.verdicts if known.rates == rates), None)
        if verdict is None:
            verdict = judge_setting(deployment, self._setting, rates)
            self.verdicts.append(verdict)
        self._new.append(verdict)

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        new, self._new = self._new, []
        return new

    def broken(self, verdict: Verdict, late: float) -> None:
        self.broken_promises += 1
