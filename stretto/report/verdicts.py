"""Verdicts over loads, as a table and as a picture of what is promised beside what no plan could beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.core.deployment import Deployment
from stretto.core.verdict import Candidate, Verdict
from stretto.report.plots import DROPPED, INK, MUTED, ON_TIME, _figure, legend_below
from stretto.report.tables import figures_table, share, whole
from stretto.sim.bounds import fluid_accuracy, fluid_goodput

COLUMNS = ("served by", "correct / bound", "late", "ahead by", "of")


def verdicts_table(deployment: Deployment, verdicts: Sequence[Verdict], title: str) -> Any:
    """One load a row: who was chosen, what it promises (%), and how far the next one is behind (points)."""
    rows = {}
    for verdict in verdicts:
        promise, bound = verdict.promise, limits(deployment, verdict.rates)[1]
        rows[whole(sum(verdict.rates))] = [
            short(verdict.candidate),
            f"{100 * promise.correct:.2f} / {100 * bound:.2f}",
            f"{100 * promise.late:.2f}",
            f"{100 * verdict.ahead:.2f} ± {100 * verdict.ahead_error:.2f}",
            _runner_up(verdict),
        ]
    return figures_table(title, "queries/s", COLUMNS, rows)


def _runner_up(verdict: Verdict) -> str:
    """Where it is the same planner, its options tell."""
    if verdict.runner_up == verdict.candidate:
        return "–"
    words = short(verdict.runner_up)
    return words.removeprefix(f"{verdict.candidate.planner} ")


def verdict_lines(deployment: Deployment, verdict: Verdict) -> list[str]:
    """One verdict in words."""
    promise, (_, bound) = verdict.promise, limits(deployment, verdict.rates)
    is_known = all(variant.has_accuracy for variant in deployment.variants)
    right = f"{share(promise.correct)} (no plan can beat {share(bound)})" if is_known else "not known"
    lines = [
        f"judged best of {verdict.tried}: {verdict.candidate}",
        f"promised right and on time      {right}",
        f"promised to be not on time      {share(promise.late)}",
    ]
    if verdict.runner_up != verdict.candidate:
        ahead = f"{100 * verdict.ahead:.2f} ± {100 * verdict.ahead_error:.2f} points"
        lines.append(f"ahead by {ahead} of   {verdict.runner_up}")
    return lines


def short(candidate: Candidate) -> str:
    """In as few words as tell it from others: options by their values, in the planner's own order."""
    words = [f"{value:g}" for _, value in candidate.options] + [variant for _, variant in candidate.variants[:1]]
    more = " …" if len(candidate.variants) > 1 else ""
    return f"{candidate.planner} {'/'.join(words)}{more}".strip()


def limits(deployment: Deployment, rates: Sequence[float]) -> tuple[float, float]:
    """What the workers can answer of this mix, in queries/s, and the share of it that can be right at these rates."""
    return fluid_goodput(deployment, rates), fluid_accuracy(deployment, rates).correct_share


def verdict_as_dict(deployment: Deployment, verdict: Verdict) -> dict[str, Any]:
    """As plain data."""
    capacity, bound = limits(deployment, verdict.rates)
    names = (application.name for application in deployment.applications)
    return {
        "load": sum(verdict.rates),
        "rates": dict(zip(names, verdict.rates, strict=True)),
        "capacity": capacity,
        "bound": bound,
        "candidate": str(verdict.candidate),
        "promise": dict(vars(verdict.promise)),
        "runner_up": str(verdict.runner_up),
        "ahead": verdict.ahead,
        "ahead_error": verdict.ahead_error,
        "tried": verdict.tried,
        "stressed": verdict.stressed,
    }


def verdicts_figure(deployment: Deployment, verdicts: Sequence[Verdict], title: str) -> Any:
    """Promised shares against the load; a thin line marks where another planner takes over."""
    loads = [sum(verdict.rates) for verdict in verdicts]
    with _figure(12, 4.6, 2, title) as (figure, (correct, late)):
        bounds = [100 * limits(deployment, verdict.rates)[1] for verdict in verdicts]
        correct.plot(loads, bounds, color=MUTED, linewidth=1.2, linestyle="--", label="no plan can beat")
        for axes, name, colour in ((correct, "correct", ON_TIME), (late, "late", DROPPED)):
            values = [100 * getattr(verdict.promise, name) for verdict in verdicts]
            errors = [200 * getattr(verdict.promise, f"{name}_error") for verdict in verdicts]
            axes.errorbar(loads, values, yerr=errors, color=colour, marker="o", markersize=4, label="promised")
            axes.set_xscale("log")
            axes.set_xticks(loads[:: max(1, len(loads) // 6)])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.xaxis.set_minor_formatter("")
            axes.set(xlabel="queries/s", ylabel="% of queries")
        _mark_changes(correct, verdicts, loads)
        correct.set_title("answered right and on time")
        legend_below(correct, 2)
        late.set_title("without an answer on time")
        late.set_ylim(0, max(1.0, 1.05 * late.get_ylim()[1]))
    return figure


def _mark_changes(axes: Any, verdicts: Sequence[Verdict], loads: Sequence[float]) -> None:
    before = None
    for verdict, load in zip(verdicts, loads, strict=True):
        if verdict.candidate.planner != before:
            before = verdict.candidate.planner
            axes.axvline(load, color=INK, linewidth=0.5, alpha=0.4)
            axes.annotate(
                before,
                (load, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                rotation=90,
                fontsize=8,
                color=INK,
            )
