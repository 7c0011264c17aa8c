"""One variant for each application: batches start as late as deadlines allow, or as soon as enough queries wait.

Symphony with batch-aware pruning (symphony.py) waits even where the batch is large enough already, and a worker that
waits near the limit is lost. Here a batch starts as soon as it keeps up with the load: `enough` is the smallest b with
N·b/l(b) ≥ λ (Symphony, equation 3). Heads whose slack forces a batch below that, less `floor_less`, are given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_workers
from stretto.planners.parts.floors import floor_rates
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import expected_work

SLACKS = 400  # columns of a table


@dataclass(frozen=True)
class Gathering:
    """`gather_more` queries above `enough` are gathered before a batch starts early."""

    gather_more: int = 0
    floor_less: int = 1
    variants: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        rates = rates_of(view, 1.0)
        work = expected_work(deployment, chosen, rates)
        shares = work * len(deployment.workers) / work.sum()
        lanes = tuple(
            self._lane(deployment, number, chosen[number], float(rates[number]), float(shares[number]))
            for number in range(len(chosen))
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="gathering")

    def _lane(self, deployment: Deployment, number: int, variant: int, rate: float, share: float) -> Lane:
        application = deployment.applications[number]
        crew = serving_workers(deployment, variant)
        kinds = tuple(dict.fromkeys(deployment.workers[worker].kind for worker in crew))
        rates = floor_rates(deployment.profile(variant, kinds[0]), application.slo_ns, share, deployment.quantile)
        enough = sum(least <= rate for least in rates)
        tables = [
            _table(deployment, variant, kind, application.slo_ns, max(enough + self.gather_more, 1)) for kind in kinds
        ]
        return Lane(
            application.name,
            crew,
            tables[0] if len(tables) == 1 else Tables(tuple(tables)),
            Order.EARLIEST_DEADLINE,
            Eager(floor_rates=(0.0,) * max(enough - self.floor_less, 0)),
            Late.DROP_WHEN_INFEASIBLE,
        )


def _table(deployment: Deployment, variant: int, kind: str, slo_ns: int, enough: int) -> Table:
    """Fewer than `enough` wait until one more could not join in time; else as many run as fit."""
    latency = deployment.profile(variant, kind).table_ns[deployment.quantile]
    step_ns = max(1, slo_ns // SLACKS)
    slack_ns = np.arange(SLACKS + 1) * step_ns
    queued = np.arange(enough + 1)
    with_one_more = latency[np.minimum(queued + 1, len(latency) - 1)]
    waits = (queued < enough)[:, None] & (slack_ns[None, :] > with_one_more[:, None] + step_ns)
    chosen = np.where(waits, -1, variant).astype(np.int32)
    chosen[0] = chosen[1]
    return Table(step_ns, chosen, np.zeros_like(chosen), kind)
