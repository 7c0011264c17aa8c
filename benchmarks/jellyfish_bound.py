"""The most that any mapping may give: the optimum of Jellyfish's own program, equations (1) to (6).

At moments of a run, with the bandwidth that each client has in the half second to come, which no planner knows:
so it bounds what algorithms 1 and 2, or any better search, can reach while they keep (5), a wait of one whole batch at
the p99 (of a quarter where there is a worker for every client, as our planner has it), and (6), capacity at the p99.
A static model behind one queue keeps neither.
"""

from __future__ import annotations

import numpy as np
from jellyfish_ground import APPLICATION, QUANTILE, deployment
from jellyfish_network import DELAY_NS, SECONDS, Setting, clients_of

from stretto.core.client import Client, Network
from stretto.core.profile import NS_PER_S
from stretto.core.view import View
from stretto.planners.jellyfish.demand import ALONE, demand_of, ladder_of
from stretto.planners.jellyfish.exact import optimum
from stretto.planners.jellyfish.search import searched

EVERY_S = 2.0
PLAN_NS = NS_PER_S // 2


def most_accurate_mapping(job: tuple[Setting, int]) -> float:
    """The mean accuracy of the best mapping there is, over the run of one seed, by the clients that have a place."""
    setting, seed = job
    served = deployment(setting.workers, setting.slo_ms)
    specs = clients_of(setting, seed)
    values = rates = 0.0
    for now_s in np.arange(EVERY_S, SECONDS, EVERY_S).tolist():
        now_ns = round(now_s * NS_PER_S)
        known = tuple(
            Client(
                slot,
                f"{slot}",
                now_ns,
                Network(spec.bandwidth.mean_over(now_ns, now_ns + PLAN_NS), 2 * DELAY_NS),
                application=APPLICATION,
                rate=spec.fps,
                slo_ns=spec.slo_ns,
            )
            for slot, spec in enumerate(specs)
            if spec.joins_s <= now_s
        )
        view = View(served, now_ns, np.array([sum(client.rate for client in known)]), clients=lambda of=known: of)
        ladder = ladder_of(view, 0, tuple(range(setting.workers)), QUANTILE)
        queueing = ALONE if len(known) <= setting.workers else 1.0
        problem = demand_of(view, 0, ladder, queueing=queueing, step=1.0, headroom=1.0).problem
        best = optimum(problem, at_least=searched(problem))
        values += best.value
        rates += float(problem.rate[best.worker_of >= 0].sum())
    return values / max(rates, 1e-9)
