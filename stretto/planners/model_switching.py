"""ModelSwitching (Zhang et al., HotCloud 2020; RAMSIS section 7): the most accurate variant whose p99 response holds.

Any variant that answers a single query within the SLO may be chosen; its p99 response latency must be within the SLO as
well. That is measured offline, per variant and load, on the same central queue with the same caps of batches, by
whoever has a simulator (`stretto.sim.responses`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan, by_application
from stretto.core.view import View
from stretto.planners.parts.central import central_lane, keeping_up, variants_within
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.responses import Responses
from stretto.planners.parts.sharing import workers_of_applications
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ports import MeasureResponses


@dataclass
class ModelSwitching:
    """`responses` measures what it goes by, once for each deployment. `workers` says how many an application gets; else
    they are shared out by expected work.
    """

    responses: MeasureResponses | None = None
    workers: Mapping[str, int] = field(default_factory=dict)
    _measured: dict[str, Responses] = field(default_factory=dict, repr=False)  # by application

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        shares = workers_of_applications(deployment, view.expected_rates, self.workers)
        tasks = [measured_task(deployment, number, workers) for number, workers in enumerate(shares)]
        if any(not self._is_measured(task) for task in tasks):
            if self.responses is None:
                raise StrettoError(
                    "ModelSwitching goes by response latencies, and nothing here measures them; take another planner"
                )
            self._measured = dict(self.responses(deployment, view.expected_rates))
        lanes = []
        for number, (task, workers) in enumerate(zip(tasks, shares, strict=True)):
            load = float(rates_of(view, 0.0)[number])
            variant = self.variant_for(deployment, number, task, load)
            # The cap is that of the load at which the response was measured.
            measured = self._measured[task.application].covering(load)
            caps = caps_at(deployment, number, workers, load if measured is None else measured)
            lanes.append(central_lane(deployment, number, workers, variant, caps))
        return by_application(tuple(lanes), rate_window_ns=RATE_WINDOW_NS, planner="model_switching")

    def variant_for(self, deployment: Deployment, application: int, task: Task, load: float) -> int:
        """The most accurate variant with p99 within the SLO at this load; where none is, the quickest to respond."""
        measured = self._measured.get(task.application)
        if measured is None:
            raise StrettoError(f"no response latencies were measured for application {task.application}")
        for what, value in task.described().items():
            if measured.described.get(what) != value:
                raise StrettoError(
                    f"the response latencies of application {task.application} were measured for another {what};"
                    " measure them again"
                )
        names = {deployment.variants[n].name: n for n in deployment.variants_of(application)}
        p99 = {names[name]: measured.at(name, load) for name in measured.p99_ns}
        able = [variant for variant, latency in p99.items() if latency <= task.slo_ns]
        if able:
            return max(able, key=lambda variant: deployment.variants[variant].accuracy)
        fastest = names[task.variants[task.fastest(1)]]
        return fastest if math.isinf(min(p99.values())) else min(p99, key=lambda variant: p99[variant])

    def _is_measured(self, task: Task) -> bool:
        measured = self._measured.get(task.application)
        return measured is not None and dict(measured.described) == task.described()


def caps_at(deployment: Deployment, application: int, workers: tuple[int, ...], load: float) -> dict[str, int]:
    """Returns the largest batches at a load, whichever variant runs."""
    return keeping_up(deployment, variants_within(deployment, application, workers, 1.0), workers, load)[1]


def measured_task(deployment: Deployment, application: int, workers: tuple[int, ...]) -> Task:
    """What responses depend on: the application on its workers, by the kind of the first."""
    return task_of(deployment, application, deployment.workers[workers[0]].kind, len(workers))
