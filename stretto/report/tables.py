"""Tables for the terminal: one run, several runs side by side, a goodput search, and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from stretto.sim.results import Summary

MAX_APPLICATION_ROWS = 40
OUTCOME_WORDS = {
    "on_time": "answered on time",
    "late": "answered late",
    "dropped_infeasible": "dropped, infeasible",
    "dropped_expired": "dropped, expired",
    "dropped_overload": "dropped, overload",
    "dropped_cancelled": "cancelled",
    "failed": "failed",
}


def whole(value: float) -> str:
    """12345.6 → 12,346"""
    return f"{value:,.0f}"


def share(value: float) -> str:
    """0.98765 → 98.77%"""
    return f"{value:.2%}"


def told_beside(accuracies: Mapping[str, tuple[float | None, float | None]]) -> list[str]:
    """A sentence for each variant whose accuracy differs from the one that is stated; given as both, by name."""
    return [
        f"{name}: {share(stated)} is stated in variant.toml, and {share(accuracy)}, which was measured, counts"
        for name, (accuracy, stated) in accuracies.items()
        if accuracy is not None and stated is not None and share(accuracy) != share(stated)
    ]


def milliseconds(value: float) -> str:
    """Three figures that matter, and no more than two decimals."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", min_width=len(title))
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def run_table(summary: Summary, title: str) -> Table:
    """The figures of one run, one a row."""
    table = _table(title, "figure", "value")
    rows: list[tuple[str, str]] = [
        ("queries submitted", whole(summary.submitted)),
        ("goodput, answers on time a second", whole(summary.goodput)),
        ("on time", share(summary.on_time_rate)),
        *(
            [
                ("accuracy of on-time answers", share(summary.accuracy)),
                ("correct and on time", share(summary.correct_on_time)),
            ]
            if summary.has_accuracy
            else []
        ),
        *(
            [("utility, late answers by their penalty", share(summary.utility))]
            if summary.has_accuracy and summary.utility != summary.correct_on_time
            else []
        ),
        ("latency p50 / p95 / p99, ms", _percentiles(summary.latency_ms)),
        ("queueing p50 / p95 / p99, ms", _percentiles(summary.queueing_ms)),
        ("mean batch", f"{summary.batch_mean:.2f}"),
        ("workers busy", share(summary.worker_use)),
    ]
    for name, count in summary.outcomes.items():
        if count and name != "on_time":
            rows.append((OUTCOME_WORDS.get(name, name.replace("_", " ")), whole(count)))
    for row in rows:
        table.add_row(*row)
    return table


def application_table(applications: Sequence[Any]) -> Table:
    """One application a row; where there are many, those with the smallest on-time share."""
    shown = sorted(applications, key=lambda application: application.on_time_rate)[:MAX_APPLICATION_ROWS]
    title = "applications" if len(shown) == len(applications) else f"the {len(shown)} worst of {len(applications)}"
    if len(shown) == len(applications):
        shown = list(applications)
    table = _table(title, "application", "submitted", "goodput /s", "on time", "p99 ms", "mean batch")
    for application in shown:
        table.add_row(
            application.name,
            whole(application.submitted),
            whole(application.goodput),
            share(application.on_time_rate),
            milliseconds(application.latency_ms["p99"]),
            f"{application.batch_mean:.2f}",
        )
    return table


def comparison_table(summaries: Mapping[str, Summary], title: str, words: Mapping[str, str] | None = None) -> Table:
    """One planner a row, the best goodput in bold; accuracy where planners differ in it."""
    is_given = all(summary.has_accuracy for summary in summaries.values())
    has_accuracy = is_given and len({round(summary.accuracy, 6) for summary in summaries.values()}) > 1
    columns = ("goodput /s", "on time", *(["accuracy"] if has_accuracy else []), "p99 ms", "mean batch", "workers busy")
    table = _table(title, "planner", *columns)
    best = max((summary.goodput for summary in summaries.values()), default=0.0)
    for name, summary in summaries.items():
        table.add_row(
            (words or {}).get(name, name),
            whole(summary.goodput),
            share(summary.on_time_rate),
            *([share(summary.accuracy)] if has_accuracy else []),
            milliseconds(summary.latency_ms["p99"]),
            f"{summary.batch_mean:.2f}",
            share(summary.worker_use),
            style="bold" if summary.goodput == best else None,
        )
    return table


def figures_table(title: str, first: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Any small table of named rows: goodput by planner, bounds."""
    table = _table(title, first, *columns)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _percentiles(values: Mapping[str, float]) -> str:
    return " / ".join(milliseconds(values[name]) for name in ("p50", "p95", "p99"))
