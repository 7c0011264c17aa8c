"""Figure 7 of SneakPeek: the error of estimated accuracy, by application. Needs matplotlib, loaded when asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.report.plots import DROPPED, LATE, MUTED, ON_TIME, OTHER_COLOURS, _figure

COLOURS = (DROPPED, LATE, ON_TIME, *OTHER_COLOURS)
MAX_APPLICATIONS = 6


def error_figure(errors: Mapping[str, Mapping[str, float]], title: str) -> Any:
    """The bars of each application in one panel of its own; at most six applications, the first ones."""
    shown = list(errors.items())[:MAX_APPLICATIONS]
    with _figure(1.0 + 3.4 * len(shown), 3.9, len(shown), title) as (figure, panels):
        for axes, (name, bars) in zip(panels, shown, strict=True):
            places = range(len(bars))
            heights = [100 * value for value in bars.values()]
            axes.bar(places, heights, color=COLOURS[: len(bars)], width=0.65)
            for place, height in zip(places, heights, strict=True):
                axes.annotate(
                    f"{height:.1f}",
                    (place, height),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                    color=MUTED,
                )
            axes.set_xticks(list(places), [words.replace(", ", ",\n") for words in bars], fontsize=8.5)
            axes.margins(y=0.12)
            axes.grid(axis="x", visible=False)
            axes.set(title=name, ylabel="mean error, points")
    return figure
