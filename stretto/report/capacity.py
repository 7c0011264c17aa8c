"""What each number of workers promises, against what is asked for. Needs matplotlib, loaded when asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.report.plots import DROPPED, INK, MUTED, ON_TIME, _figure, legend_below

Point = tuple[int, float, float]  # workers, accuracy, share of queries not on time


def capacity_figure(
    expected: Sequence[Point], simulated: Point, min_accuracy: float, max_violation: float, title: str
) -> Any:
    """Accuracy and violations against workers; the requirement is a line, the answer a point on it or beyond."""
    with _figure(12, 4.4, 2, title) as (figure, (accuracy, violation)):
        counts = [workers for workers, _, _ in expected]
        accuracy.plot(counts, [100 * value for _, value, _ in expected], color=ON_TIME, marker="o", markersize=4)
        accuracy.axhline(100 * min_accuracy, color=INK, linewidth=0.8, linestyle="--")
        accuracy.set(title="accuracy of answers", xlabel="workers", ylabel="%")
        violation.plot(
            counts, [100 * value for _, _, value in expected], color=ON_TIME, marker="o", markersize=4, label="expected"
        )
        violation.axhline(100 * max_violation, color=INK, linewidth=0.8, linestyle="--", label="asked for")
        violation.set_yscale("symlog", linthresh=0.1)
        violation.set_ylim(0, 150)
        violation.set_yticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
        violation.set(title="queries not answered on time", xlabel="workers", ylabel="%")
        answer, seen, missed = simulated
        for axes, value in ((accuracy, seen), (violation, missed)):
            axes.axvline(answer, color=MUTED, linewidth=0.8)
            axes.plot(
                [answer], [100 * value], marker="D", markersize=7, color=DROPPED, linestyle="none", label="simulated"
            )
            axes.xaxis.get_major_locator().set_params(integer=True)
        accuracy.annotate(
            f"{answer} workers",
            (answer, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -12),
            textcoords="offset points",
            fontweight="bold",
        )
        legend_below(violation)
    return figure
