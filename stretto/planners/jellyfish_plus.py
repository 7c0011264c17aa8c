"""Jellyfish+ (Mendoza et al., EuroSys 2024, section 7): one variant for the load, a central queue, nothing dropped.

The variant is the most accurate one that answers a batch within half the SLO and whose throughput on all workers in
such batches is above the load, by the twentieth that the published code asks for. The paper says "average throughput"
and no margin; the code takes the best batch, not the average over batches. Where no variant keeps up, the fastest one
takes whatever waits, up to the largest batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.plan import Plan, by_application
from stretto.core.view import View
from stretto.planners.parts.central import central_lane, keeping_up, variants_within
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import workers_of_applications

HEADROOM = 1.05  # times the load


@dataclass(frozen=True)
class JellyfishPlus:
    """`workers` says how many an application gets; otherwise they are dealt by the work that its owner expects."""

    workers: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, view: View) -> Plan:
        deployment, rates = view.deployment, rates_of(view, 0.0)
        # By what is expected and not by what was measured: workers must not move.
        crews = workers_of_applications(deployment, view.expected_rates, self.workers)
        lanes = []
        for number, crew in enumerate(crews):
            variants = variants_within(deployment, number, crew, 0.5)
            variant, caps = keeping_up(deployment, variants, crew, HEADROOM * float(rates[number]))
            lanes.append(central_lane(deployment, number, crew, variant, caps))
        return by_application(tuple(lanes), rate_window_ns=RATE_WINDOW_NS, planner="jellyfish+")
