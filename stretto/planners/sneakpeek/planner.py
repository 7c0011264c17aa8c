"""The planner: a View's waiting queries, scheduled as one window, become a worklist.

It is called at the end of every window. Queries of earlier windows that have not started are among those that wait, and
are planned anew. Queries that demand certain variants are not its to choose for; they have lanes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Route, RouteRule, Work, Worklist
from stretto.core.view import View, WaitingQuery
from stretto.planners.sneakpeek.catalogue import MOST_BATCH, Catalogue, catalogue_of
from stretto.planners.sneakpeek.schedule import Options, Schedule, schedule
from stretto.planners.sneakpeek.window import window_of

_PROFILED: dict[str, Any] = {"split_classes": False, "data_aware": False, "short_circuit": False, "caution": 0.0}


@dataclass
class SneakPeek:
    """The five systems of section 6.1 are settings; each may be data-aware, and may answer from evidence."""

    order: Order | str = Order.PRIORITY  # or its name, in small letters
    max_accuracy: bool = False
    grouped: bool = True
    split_classes: bool = True
    data_aware: bool = True
    short_circuit: bool = True
    exact_groups: int = 6
    max_group: int = 0
    caution: float = 0.9
    trials: int = 1000
    certainty: float = 0.0
    name: str = "sneakpeek"
    _known: tuple[Deployment, Catalogue, Plan] | None = field(default=None, repr=False)  # the plan: nothing waits

    @property
    def looks_at_evidence(self) -> bool:
        """Whether it makes a difference to it."""
        return self.data_aware or self.short_circuit

    def __call__(self, view: View) -> Plan:
        """The same plan object while nothing waits."""
        deployment = view.deployment
        if self._known is None or self._known[0] is not deployment:
            self._known = (deployment, catalogue_of(deployment), self._plan(deployment, Worklist()))
            self._warm_up(self._known[1])
        _, catalogue, idle = self._known
        queries = [query for query in view.waiting() if query.demand < 0]
        if not queries or not view.alive.any():
            return idle
        window = window_of(
            *(catalogue, view.now_ns, queries, view),
            data_aware=self.data_aware,
            short_circuit=self.short_circuit,
            certainty=self.certainty,
        )
        scheduled = schedule(window, self.options())
        tickets = [query.ticket for query in queries]
        return self._plan(deployment, _worklist(scheduled, tickets))

    def _warm_up(self, catalogue: Catalogue) -> None:
        """Compile what is not compiled yet now, before the first query, and not while a window waits."""
        queries = [WaitingQuery(number, number, 0, 1, -1, -1, 0) for number in range(len(catalogue.variants))]
        schedule(window_of(catalogue, 0, queries[:2]), self.options())

    def options(self) -> Options:
        """What the schedule of a window depends on."""
        return Options(
            order=Order[self.order.upper()] if isinstance(self.order, str) else self.order,
            max_accuracy=self.max_accuracy,
            grouped=self.grouped,
            split_classes=self.split_classes,
            exact_groups=self.exact_groups,
            max_group=self.max_group,
            caution=self.caution,
            trials=self.trials,
        )

    def _plan(self, deployment: Deployment, worklist: Worklist) -> Plan:
        lane = Lane(
            "window",
            tuple(range(len(deployment.workers))),
            worklist,
            Order.EARLIEST_DEADLINE,
            Eager(MOST_BATCH),
            Late.KEEP,
        )
        route = Route(RouteRule.BY_APPLICATION, (0,))
        return Plan((lane,), (route,) * len(deployment.applications), planner=self.name)


def grouped(**settings: Any) -> SneakPeek:
    """Groups by application, profiled accuracy."""
    return SneakPeek(**(_PROFILED | {"name": "grouped"} | settings))


def lo_priority(**settings: Any) -> SneakPeek:
    """One request after another by priority, locally optimal."""
    return SneakPeek(**(_PROFILED | {"grouped": False, "name": "lo_priority"} | settings))


def lo_edf(**settings: Any) -> SneakPeek:
    """One request after another by deadline, locally optimal."""
    return lo_priority(**({"order": Order.EARLIEST_DEADLINE, "name": "lo_edf"} | settings))


def max_acc_edf(**settings: Any) -> SneakPeek:
    """One request after another by deadline, always the most accurate variant."""
    return lo_edf(**({"max_accuracy": True, "name": "max_acc_edf"} | settings))


def _worklist(scheduled: Schedule, tickets: list[int]) -> Worklist:
    works = (
        Work(batch.worker, batch.variant, tuple(tickets[place] for place in batch.requests))
        for batch in scheduled.batches
    )
    return Worklist(tuple(works), tuple(tickets[place] for place in scheduled.answers))
