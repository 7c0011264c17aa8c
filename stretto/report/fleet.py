"""A fleet that was scaled, over time: a table, a figure, plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from stretto.core.profile import NS_PER_S
from stretto.report.plots import DROPPED, MUTED, OTHER_COLOURS, grid_figure, legend_beside
from stretto.report.tables import _table, share

if TYPE_CHECKING:
    from stretto.sim.autoscale import FleetTrace

MAX_ROWS = 30


def fleet_table(fleet: FleetTrace) -> Table:
    """The periods in which something changed, and the last one; the first of them where there are many."""
    kinds = list(fleet.advice[-1].wanted) if fleet.advice else []
    cost = f", cost {fleet.cost:,.4g}"
    hours = ", ".join(f"{seconds / 3600:,.3g} worker hours of {kind}" for kind, seconds in fleet.worker_seconds.items())
    table = _table(f"the fleet: {hours}{cost}", "second", *_columns(kinds), "bad", "idle", "because")
    before: dict[str, int] | None = None
    rows = []
    for advice in fleet.advice:
        if dict(advice.wanted) != before or advice is fleet.advice[-1]:
            counts = [str(counts.get(kind, 0)) for kind in kinds for counts in (advice.present, advice.wanted)]
            shares = share(advice.bad_rate), share(advice.idle_share)
            rows.append((f"{advice.now_ns / NS_PER_S:g}", *counts, *shares, advice.reason))
        before = dict(advice.wanted)
    for row in rows[:MAX_ROWS]:
        table.add_row(*row)
    if len(rows) > MAX_ROWS:
        table.add_row("…", *[""] * (2 * len(kinds) + 2), f"{len(rows) - MAX_ROWS} more, in --json and --plot")
    return table


def _columns(kinds: list[str]) -> list[str]:
    if len(kinds) == 1:
        return ["workers", "wanted"]
    return [f"{kind}{what}" for kind in kinds for what in ("", ", wanted")]


def fleet_as_dict(fleet: FleetTrace) -> dict[str, Any]:
    return {
        "worker_seconds": dict(fleet.worker_seconds),
        "cost": fleet.cost,
        "changes": [{"second": second, "kind": kind, "workers": count} for second, kind, count in fleet.changes],
        "periods": [
            {
                "second": advice.now_ns / NS_PER_S,
                "present": dict(advice.present),
                "wanted": dict(advice.wanted),
                "bad_rate": advice.bad_rate,
                "idle_share": advice.idle_share,
                "reason": advice.reason,
            }
            for advice in fleet.advice
        ],
    }


def fleet_figure(fleet: FleetTrace, title: str) -> Any:
    """Workers that are there and that are wanted, above the bad rate and the idle share of each period."""
    with grid_figure(12, 6.0, 2, 1, title) as (figure, ((workers,), (rates,))):
        times = [advice.now_ns / NS_PER_S for advice in fleet.advice]
        kinds = list(fleet.advice[-1].wanted) if fleet.advice else []
        for kind, colour in zip(kinds, OTHER_COLOURS * len(kinds), strict=False):
            changes = [(second, count) for second, which, count in fleet.changes if which == kind]
            steps = [*changes, (fleet.seconds, changes[-1][1])] if changes else []
            workers.step(*zip(*steps, strict=True), where="post", color=colour, linewidth=2, label=kind)
            wanted = [advice.wanted.get(kind, 0) for advice in fleet.advice]
            workers.step(times, wanted, where="post", color=colour, linestyle=":", label=f"{kind}, wanted")
        workers.set_ylim(bottom=0)
        workers.set(title="workers", ylabel="there, and wanted")
        legend_beside(workers)
        bad, idle = ([100 * getattr(each, name) for each in fleet.advice] for name in ("bad_rate", "idle_share"))
        rates.step(times, bad, where="pre", color=DROPPED, linewidth=2, label="bad rate")
        rates.step(times, idle, where="pre", color=MUTED, label="idle share")
        rates.set_ylim(0, 100)
        rates.set(title="each period", xlabel="second", ylabel="%")
        legend_beside(rates)
    return figure
