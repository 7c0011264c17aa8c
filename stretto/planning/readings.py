"""Telemetry becomes a View: one λ per application, who is alive, which latencies were measured, what ended since.

Both drivers read through here, so that a planner sees the same of the same run, simulated or live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Plan
from stretto.core.telemetry import Telemetry
from stretto.core.view import View, WaitingQuery


class Readings:
    """Of one dispatcher: remembers the last look, so that a view can say what happened since."""

    def __init__(self, deployment: Deployment, expected_rates: Sequence[float] | None = None) -> None:
        self.deployment = deployment
        self.expected_rates = None if expected_rates is None else tuple(expected_rates)
        self._before: Telemetry | None = None

    def first_view(self, now_ns: int = 0, delays: Delays | None = None) -> View:
        """Before anything was measured."""
        return View(self.deployment, now_ns, expected_rates=self.expected_rates, delays=delays or Delays())

    def view(
        self,
        telemetry: Telemetry,
        *,
        plan: Plan | None = None,
        delays: Delays | None = None,
        clients: tuple[Client, ...] = (),
        waiting: Callable[[], tuple[WaitingQuery, ...]] = tuple,
    ) -> View:
        """`plan` is the one in force as its planner made it; lanes that were added to it come after its own."""
        before, self._before = self._before, telemetry
        return View(
            deployment=self.deployment,
            now_ns=telemetry.now_ns,
            rates=self._rates(telemetry),
            expected_rates=self.expected_rates,
            alive=telemetry.worker_alive,
            free_ns=telemetry.worker_free_ns,
            holds=telemetry.worker_holds,
            latency_ratio=telemetry.latency_ratio,
            is_measured=telemetry.is_measured,
            ended=np.zeros_like(telemetry.outcomes) if before is None else telemetry.outcomes - before.outcomes,
            idle_share=None if before is None else telemetry.idle_share_since(before),
            plan=plan,
            lane_rates=None if plan is None else telemetry.lane_rates[: len(plan.lanes)],
            delays=delays or Delays(),
            clients=clients,
            waiting=waiting,
        )

    def _rates(self, telemetry: Telemetry) -> NDArray[np.float64]:
        """What was measured; until it was for a whole window, what the owner states, where he does."""
        if self.expected_rates is None:
            return telemetry.rates
        return np.where(telemetry.is_rated, telemetry.rates, np.array(self.expected_rates))
