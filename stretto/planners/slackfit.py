"""SlackFit, the policy of SuperServe (Khare et al., NSDI 2025): the head's slack alone says what runs.

The (variant, batch) pairs of an application are sorted by their latency into buckets of equal width, and each bucket
stands for its pair with the largest batch, the more accurate one where batches are equal. A worker runs the pair of the
highest bucket that ends within the slack of the most urgent query. On the Pareto front both accuracy and throughput
rise with latency: much slack buys accuracy, and a queue that grows eats the slack, so that faster pairs follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.parts.fronts import pareto_front
from stretto.planners.parts.task import kinds_for, task_of


@dataclass(frozen=True)
class SlackFit:
    """`buckets` is into how many the range of latencies within the SLO is divided, for each kind of worker."""

    buckets: int = 32

    def __call__(self, view: View) -> Plan:
        lanes = tuple(self._lane(view, number) for number in range(len(view.deployment.applications)))
        return by_application(lanes, planner="slackfit")

    def _lane(self, view: View, application: int) -> Lane:
        deployment, served = view.deployment, view.deployment.applications[application]
        kinds = kinds_for(deployment, application)
        tables = tuple(table for kind in kinds if (table := bucket_table(view, application, kind, self.buckets)))
        if not tables:
            raise StrettoError(f"no variant of application {served.name} answers a single query within its SLO")
        able = {table.kind for table in tables}
        workers = tuple(number for number, worker in enumerate(deployment.workers) if worker.kind in able)
        select = tables[0] if len(tables) == 1 else Tables(tables)
        return Lane(served.name, workers, select, Order.EARLIEST_DEADLINE, Eager(), Late.DROP_WHEN_INFEASIBLE)


def bucket_table(view: View, application: int, kind: str, buckets: int) -> Table | None:
    """One row, whatever is queued. A column begins where the slack admits the next bucket's pair.

    None where not even one query is answered within the SLO.
    """
    deployment, slo_ns = view.deployment, view.deployment.applications[application].slo_ns
    fitting = [
        (profile.latency_ns(size, deployment.quantile) + view.delays.of_batch_ns(size), size, number)
        for number in deployment.variants_of(application)
        if (profile := deployment.variants[number].profile_on(kind)) is not None
        for size in range(1, profile.max_batch + 1)
    ]
    if not any(need <= slo_ns for need, _, _ in fitting):
        return None
    task = task_of(deployment, application, kind)
    front = {task.numbers_in(deployment, application)[place] for place in pareto_front(task)}
    pairs = sorted(pair for pair in fitting if pair[2] in front and pair[0] <= slo_ns)
    shortest, longest = pairs[0][0], pairs[-1][0]
    width = max(1, -(-(longest - shortest + 1) // buckets))
    best: dict[int, tuple[int, float, int, int]] = {}  # by bucket: batch, accuracy, -latency, variant
    for need, size, number in pairs:
        pair = (size, deployment.variants[number].accuracy, -need, number)
        bucket = (need - shortest) // width
        best[bucket] = max(best.get(bucket, pair), pair)
    chosen = [best[bucket] for bucket in sorted(best)]
    variant, batch = np.array([[pair[3] for pair in chosen]]), np.array([[pair[0] for pair in chosen]])
    edges = tuple(-pair[2] for pair in chosen[1:])
    return Table(1, variant.astype(np.int32), batch.astype(np.int32), kind, edges)
