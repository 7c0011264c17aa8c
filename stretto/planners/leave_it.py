"""One shared queue in which quick instances leave queries for accurate ones: no training, no knowledge of the load.

The most accurate kind of worker takes whatever waits. A less accurate kind takes the head only when leaving it would
make it late: its slack is below two runs of the better kind, or more wait than the better workers can answer within the
SLO. In a lull the accurate workers answer everything; in a burst they are always busy, and the others take the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import Lane, Late, Order, Plan, Table, Tables, WorkerChoice, by_application
from stretto.core.view import View
from stretto.planners.edge_rl.baselines import common_lane
from stretto.planners.edge_rl.instances import Instance, instances_of

WAIT = -1


@dataclass(frozen=True)
class LeaveIt:
    """`runs`: a head whose slack is below so many runs of a better instance is not left for it."""

    runs: float = 2.0

    def __call__(self, view: View) -> Plan:
        applications = range(len(view.deployment.applications))
        return by_application(tuple(self._lane(view.deployment, number) for number in applications), planner="leave_it")

    def _lane(self, deployment: Deployment, application: int) -> Lane:
        lane = common_lane(deployment, application)
        crew = instances_of(deployment, application)
        kinds = dict.fromkeys(deployment.workers[instance.worker].kind for instance in crew)
        tables = tuple(self._table(deployment, application, crew, kind) for kind in kinds)
        return replace(
            lane,
            select=Tables(tables),
            order=Order.EARLIEST_DEADLINE,
            late=Late.DROP_WHEN_INFEASIBLE,
            worker_choice=WorkerChoice.PREFERENCE,
            capacity=Lane.capacity,
        )

    def _table(self, deployment: Deployment, application: int, crew: tuple[Instance, ...], kind: str) -> Table:
        """Two columns: little slack, in which it runs, and enough, in which it waits until many are there."""
        owner = next(instance for instance in crew if deployment.workers[instance.worker].kind == kind)
        better = [instance for instance in crew if instance.accuracy > owner.accuracy]
        if not better:
            always = np.full((1, 1), owner.variant, np.int32)
            return Table(1, always, np.ones_like(always), kind)
        slo_ns = deployment.applications[application].slo_ns
        answered = slo_ns * sum(1.0 / instance.service_ns for instance in better)  # within the SLO
        rows = int(answered) + 2
        variant = np.full((rows, 2), owner.variant, np.int32)
        variant[: rows - 1, 1] = WAIT  # the last row, of more than can be answered, holds for all longer queues
        threshold_ns = round(self.runs * max(instance.service_ns for instance in better))
        return Table(1, variant, np.ones_like(variant), kind, edges_ns=(threshold_ns,))
