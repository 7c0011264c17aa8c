"""The load monitor of section 6, shared by RAMSIS and the systems it is compared with: a moving average over 500 ms."""

from __future__ import annotations

from stretto.core.profile import NS_PER_MS
from stretto.core.telemetry import View

RATE_WINDOW_NS = 500 * NS_PER_MS  # of the plans; lanes count their arrivals over it


def lane_name(application: str, worker: str = "") -> str:
    """Lanes are named after their application, so that the monitor finds them."""
    return f"{application}/{worker}"


def measured_load(view: View, application: int) -> float | None:
    """Queries/s of an application over the last window, else as expected, else None."""
    telemetry = view.telemetry
    if telemetry is not None and telemetry.now_ns >= RATE_WINDOW_NS:
        prefix = lane_name(view.deployment.applications[application].name)
        own = [name.startswith(prefix) for name in telemetry.lane_names]
        if any(own):
            return float(telemetry.lane_rates[own].sum())
    return None if view.expected_rates is None else float(view.expected_rates[application])
