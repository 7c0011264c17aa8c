"""Learning curves of `stretto train`: goodput, violations and share of the accurate variant, by phase of the load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.core.errors import StrettoError
from stretto.report.plots import _figure, colour_of

PARTS = (("overall", "-"), ("normal", "--"), ("bursty", ":"))
PANELS = (("goodput", "goodput, %"), ("violations", "late or refused, %"), ("heavy", "by the most accurate variant, %"))


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """What a training wrote into its folder, or a file of its own."""
    file = folder / "curve.json" if folder.is_dir() else folder
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return rows
    except (OSError, ValueError):
        raise StrettoError(f"{file} is no learning curve") from None


def learning_figure(curves: Mapping[str, Path]) -> Any:
    """One line for each training and phase, against the slots learned from (figures 2, 4 and 6 of edge RL)."""
    with _figure(13, 4.6, len(PANELS), "learning") as (figure, axes):
        for place, (name, folder) in enumerate(curves.items()):
            rows = read_curve(folder)
            slots = [row["slots"] / 1e6 for row in rows]
            for axis, (key, title) in zip(axes, PANELS, strict=True):
                for part, style in PARTS:
                    if f"{part}_{key}" not in rows[-1]:  # a load whose phases are not known has no parts
                        continue
                    values = [100 * row[f"{part}_{key}"] for row in rows]
                    axis.plot(slots, values, style, color=colour_of(name, place), label=f"{name}, {part}")
                axis.set_xlabel("million slots")
                axis.set_title(title)
        lines, labels = axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=len(curves), fontsize=8)
    return figure
