"""What the judge says to `stretto plan` and `stretto capacity`: one application on equal workers, as profiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.cli.subject import Choice, Subject
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Plan, Table, Tables
from stretto.core.verdict import Verdict
from stretto.live.delays import DelayMeter
from stretto.planners.candidates import make
from stretto.planning.session import Session
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.capacity import Requirement
from stretto.sim.results import Summary
from stretto.sim.simulator import simulate
from stretto.twin.live import judge_setting
from stretto.twin.setting import Setting
from stretto.twin.tune import as_profiled

Progress = Callable[[float], None]
OTHER_SEED = 7919


@dataclass(frozen=True, eq=False)
class JudgedPlan:
    """The winner for a load on so many workers, and what it promises."""

    deployment: Deployment
    setting: Setting
    verdict: Verdict

    @property
    def workers(self) -> int:
        return len(self.deployment.workers)

    @property
    def accuracy(self) -> float:
        """Of answers on time."""
        return self.verdict.promise.accuracy

    @property
    def violation(self) -> float:
        return self.verdict.promise.late

    def figures(self) -> dict[str, float]:
        """For people and for programs: what is known."""
        return {"accuracy": self.accuracy, "violation": self.violation}

    @property
    def load(self) -> float:
        return sum(self.verdict.rates)

    def plan(self) -> Plan:
        """As it would be served at this load."""
        session = Session(make(self.verdict.candidate))
        conditions = Conditions(delays=self.setting.delays)
        return session.first(self.deployment, 0, conditions, expected_rates=self.verdict.rates).plan

    def table(self) -> Table | None:
        """What the plan selects by, where that is one table."""
        select = self.plan().lanes[0].select
        tables = select.tables if isinstance(select, Tables) else (select,)
        return tables[0] if len(tables) == 1 and isinstance(tables[0], Table) else None

    def simulated(self, seconds: float, seed: int) -> Summary:
        """On arrivals that nobody was judged by."""
        factor = self.load / sum(self.setting.source().expected_rates(self.deployment, 1.0))
        return simulate(
            self.deployment,
            Session(make(self.verdict.candidate)),
            self.setting.source(factor),
            seconds=seconds,
            seed=OTHER_SEED + seed,
            service=self.setting.service(),
            delays=self.setting.delays,
            expected_rates=self.verdict.rates,
        ).summary

    def as_dict(self) -> dict[str, Any]:
        from stretto.report.verdicts import verdict_as_dict

        return verdict_as_dict(self.deployment, self.verdict)


def judged_plan(
    chosen: Subject, choice: Choice, workers: int, load: float, progress: Progress | None = None
) -> JudgedPlan:
    """On so many equal workers."""
    return _judged(chosen, choice, chosen.deployment(workers), load, progress)


def judged_fleet(chosen: Subject, choice: Choice, fleet: Mapping[str, int], load: float) -> JudgedPlan:
    """On so many workers of each kind."""
    return _judged(chosen, choice, chosen.on(fleet), load)


def _judged(
    chosen: Subject, choice: Choice, deployment: Deployment, load: float, progress: Progress | None = None
) -> JudgedPlan:
    """What is served by a server is judged with the delays that one begins with; published figures without any."""
    delays = DelayMeter().delays if chosen.is_served else Delays()
    setting = as_profiled(deployment, delays, choice.gamma_shape)
    return JudgedPlan(deployment, setting, judge_setting(deployment, setting, (load,), progress=progress))


def fewest_by_bound(chosen: Subject, requirement: Requirement, least: int, most: int) -> int:
    """With fewer workers not even the fluid bound has so many right answers; judging them would be time lost."""
    wanted = requirement.min_accuracy * (1.0 - requirement.max_violation)

    def can(count: int) -> bool:
        return fluid_accuracy(chosen.deployment(count), (requirement.load,)).correct_share >= wanted - 1e-9

    below, enough = least - 1, least
    while enough < most and not can(enough):
        below, enough = enough, min(2 * enough, most)
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if can(middle) else (middle, enough)
    return enough
