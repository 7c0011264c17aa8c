"""The load monitor of section 6, shared by RAMSIS and the systems it is compared with: a moving average over 500 ms."""

from __future__ import annotations

from stretto.core.profile import NS_PER_MS
from stretto.core.view import View

RATE_WINDOW_NS = 500 * NS_PER_MS  # of the plans


def lane_name(application: str, worker: str = "") -> str:
    """One for each application and worker."""
    return f"{application}/{worker}"


def measured_load(view: View, application: int) -> float | None:
    """Queries/s of an application over the last window, else as expected, else None."""
    return None if view.rates is None else float(view.rates[application])
