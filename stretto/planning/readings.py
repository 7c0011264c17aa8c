"""Telemetry becomes a View: one λ per application, who is alive, which latencies were measured, what ended since.

Both drivers read through here, so that a planner sees the same of the same run, simulated or live.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Plan
from stretto.core.telemetry import Telemetry
from stretto.core.view import Lines, View, WaitingQuery


def view_of(
    deployment: Deployment,
    telemetry: Telemetry,
    before: Telemetry | None = None,
    *,
    expected_rates: tuple[float, ...] | None = None,
    plan: Plan | None = None,
    delays: Delays | None = None,
    clients: Callable[[], tuple[Client, ...]] = tuple,
    waiting: Callable[[], tuple[WaitingQuery, ...]] = tuple,
    lines: Callable[[int], Lines] | None = None,
) -> View:
    """`before` is the reading of the last view. `plan` is the one in force as its planner made it; lanes that were
    added to it come after its own.
    """
    return View(
        deployment=deployment,
        now_ns=telemetry.now_ns,
        rates=measured_rates(telemetry, expected_rates),
        expected_rates=expected_rates,
        dispersion=np.ones(len(telemetry.rates)) if telemetry.dispersion is None else telemetry.dispersion,
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
        lines=lines,
    )


def view_after_change(deployment: Deployment, before: Deployment, telemetry: Telemetry, delays: Delays) -> View:
    """Of a deployment that nothing was measured of, whose applications and workers are mostly those of `before`: they
    keep their load and their presence.
    """
    rate_of = dict(zip((each.name for each in before.applications), telemetry.rates.tolist(), strict=True))
    rates = np.array([rate_of.get(application.name, 0.0) for application in deployment.applications])
    return unmeasured_view(deployment, telemetry.now_ns, delays, rates, telemetry.worker_alive)


def unmeasured_view(
    deployment: Deployment,
    now_ns: int,
    delays: Delays,
    rates: NDArray[np.float64] | None = None,
    alive: NDArray[np.bool_] | None = None,
) -> View:
    """Of a deployment that nothing was measured of: with load and presence, where they are known from another one. That
    is all that a recording keeps of a first view.
    """
    there = np.ones(len(deployment.workers), np.bool_) if alive is None else alive
    return View(deployment, now_ns, rates, alive=there, delays=delays)


def measured_rates(telemetry: Telemetry, expected_rates: tuple[float, ...] | None) -> NDArray[np.float64]:
    """What was measured; until that was for a whole window, what the owner states, where he does. Who states no load at
    all does not know it.
    """
    if expected_rates is None:
        return telemetry.rates
    expected = np.array(expected_rates)
    return np.where(telemetry.is_rated | (expected <= 0), telemetry.rates, expected)
