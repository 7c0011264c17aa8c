"""A policy as a picture: queue length against slack of the head, a colour and a letter for each variant.

Drawn from the table that the dispatcher follows, so that what is seen is what is done. The same picture for a terminal
(rich) and for a file (matplotlib, loaded when asked).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.plan import Table
from stretto.report.colours import ladder_colour
from stretto.report.plots import INK, MUTED, _figure

if TYPE_CHECKING:
    from rich.text import Text

LETTERS = ascii_letters + digits
WAIT, MANY = "·", "?"
LABEL = 9  # characters left of the picture
EVERY_ROW, ROW_RATIO, MAX_ROWS = 24, 1.15, 44
MAX_FIGURE_ROWS = 200
MAX_TICKS = 8
LETTER_COLOUR = "rgb(20,25,35)"


@dataclass(frozen=True, eq=False)
class Picture:
    """`names` go by number. `ladder` names all variants of the application from fast to accurate, `variants` are the
    numbers of those in use. The head has at most `slo_ns` of slack.
    """

    table: Table
    names: Sequence[str]
    max_batch: Sequence[int]  # by number
    variants: tuple[int, ...]
    ladder: tuple[str, ...]
    slo_ns: int

    @staticmethod
    def of(table: Table, names: Sequence[str], ladder: Sequence[str], max_batch: Sequence[int], slo_ns: int) -> Picture:
        """`max_batch`, by variant number, judges the batches."""
        used = [number for number in np.unique(table.variant[1:]).tolist() if number >= 0]
        used.sort(key=lambda number: ladder.index(names[number]))
        return Picture(table, names, max_batch, tuple(used), tuple(ladder), slo_ns)

    def letter(self, variant: int) -> str:
        if variant < 0:
            return WAIT
        place = self.variants.index(variant)
        return LETTERS[place] if place < len(LETTERS) else MANY

    def colour(self, variant: int) -> tuple[int, int, int]:
        """The same whatever the policy uses, so that pictures of one application can be compared."""
        return ladder_colour(self.ladder.index(self.names[variant]), len(self.ladder))

    def style(self, variant: int) -> str:
        """For rich: dark letters on the variant's colour."""
        if variant < 0:
            return "dim"
        red, green, blue = self.colour(variant)
        return f"{LETTER_COLOUR} on rgb({red},{green},{blue})"

    def cut(self) -> NDArray[np.int32]:
        """The batch where it is smaller than what waits and the variant takes; 0 where it is as large as can be."""
        queued = np.arange(self.table.variant.shape[0])[:, None]
        limits = np.asarray(self.max_batch, dtype=np.int64)[self.table.variant]
        is_whole = (self.table.batch == 0) | (self.table.batch >= np.minimum(queued, limits)) | (self.table.variant < 0)
        return np.where(is_whole, 0, self.table.batch).astype(np.int32)


def policy_text(picture: Picture, width: int = 100) -> Text:
    """For a terminal of `width` characters. Rows that look alike stand together."""
    from rich.text import Text

    cut = picture.cut()
    rows = _shown_rows(picture.table.variant.shape[0])
    cell = 2 + len(str(cut[rows].max())) if cut[rows].any() else 1  # a letter, the batch, a space
    columns = _shown_columns(picture.table.variant.shape[1], (width - LABEL) // cell)
    lines: list[tuple[int, int, bytes]] = []
    for row in rows:
        look = picture.table.variant[row, columns].tobytes() + cut[row, columns].tobytes()
        if lines and lines[-1][2] == look:
            lines[-1] = (lines[-1][0], row, look)
        else:
            lines.append((row, row, look))
    text = Text(no_wrap=True, overflow="crop")
    text.append("queued".rjust(LABEL - 2) + "  slack of the head, ms\n", "bold")
    text.append(" " * LABEL + _axis(picture.table.slack_step_ns, columns, cell) + "\n", "dim")
    last_row = picture.table.variant.shape[0] - 1
    for first, last, _ in lines:
        name = f"{first}" if first == last else f"{first}–{last}"
        text.append((f"{first}+" if last == last_row else name).rjust(LABEL - 2) + "  ", "dim")
        for column in columns:
            variant, batch = int(picture.table.variant[first, column]), int(cut[first, column])
            shown = picture.letter(variant) + (str(batch) if batch else "")
            text.append(shown.ljust(cell), picture.style(variant))
        text.append("\n")
    return text


def policy_legend(picture: Picture, figures: Sequence[Sequence[str]], columns: Sequence[str]) -> Any:
    """A row for each variant in use: its letter in its colour, its name and `figures` (by number)."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(header_style="bold", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("variant", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for variant in picture.variants:
        letter = Text(f" {picture.letter(variant)} ", picture.style(variant))
        table.add_row(letter, picture.names[variant], *figures[variant])
    if (picture.table.variant[1:] < 0).any():
        table.add_row(Text(f" {WAIT} ", "dim"), "waits for more", *("" for _ in columns))
    return table


def policy_figure(picture: Picture, title: str, note: str) -> Any:
    """The same in a file, with short queues below; beside it the batches, where they are not simply all that waits."""
    variant, cut = picture.table.variant, picture.cut()
    rows = max(2, min(_last_change(variant, cut) + 2, len(variant), MAX_FIGURE_ROWS))
    has_cuts = bool(cut[1:rows].any())
    step_ms = picture.table.slack_step_ns / 1e6
    extent = (0.0, variant.shape[1] * step_ms, 0.5, rows - 0.5)
    looks: dict[str, Any] = {"extent": extent, "aspect": "auto", "interpolation": "nearest", "origin": "lower"}
    image = np.ones((rows - 1, variant.shape[1], 3))
    for number in picture.variants:
        image[variant[1:rows] == number] = np.array(picture.colour(number)) / 255
    with _figure(12.5 if has_cuts else 8.5, 5.6, 1 + has_cuts, title) as (figure, axes):
        axes[0].imshow(image, **looks)
        axes[0].set(title="variant", xlabel="slack of the head, ms", ylabel="queries queued")
        for number in picture.variants:
            shade = tuple(part / 255 for part in picture.colour(number))
            axes[0].plot([], [], "s", markersize=9, color=shade, label=picture.names[number])
        if (variant[1:rows] < 0).any():
            axes[0].plot([], [], "s", markersize=9, color="white", markeredgecolor=MUTED, label="waits for more")
        if has_cuts:
            queued = np.arange(1, rows)[:, None]
            limits = np.asarray(picture.max_batch)[variant[1:rows]]
            taken = np.where(cut[1:rows] > 0, cut[1:rows], np.minimum(queued, limits)).astype(np.float64)
            taken[variant[1:rows] < 0] = np.nan
            shown = axes[1].imshow(taken, cmap="viridis", **looks)
            axes[1].set(title="queries taken", xlabel="slack of the head, ms")
            figure.colorbar(shown, ax=axes[1], label="batch")
        for panel in axes:
            panel.grid(visible=False)
            panel.set_xlim(0, picture.slo_ns / 1e6)  # the last column is for a head that has all of it, and no time yet
            _queue_ticks(panel, rows - 1, has_longer=rows == len(variant) or _last_change(variant, cut) < rows - 1)
        count = len(axes[0].get_legend_handles_labels()[1])
        figure.legend(loc="outside lower left", ncols=min(count, 5 if has_cuts else 4))
        axes[-1].annotate(
            note, (1, 1), xycoords="axes fraction", xytext=(0, 10), textcoords="offset points", ha="right", color=INK
        )
    return figure


def _queue_ticks(axes: Any, last: int, has_longer: bool) -> None:
    """Round lengths and the last one, with a + where its row holds for all longer queues too."""
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if last / size <= MAX_TICKS or size == 100)
    ticks = [1, *range(step, last, step)] if step > 1 else list(range(1, last))
    ticks = [tick for tick in ticks if last - tick > 0.6 * step]
    axes.set_yticks([*ticks, last], [*map(str, ticks), f"{last}+" if has_longer else str(last)])


def _shown_rows(rows: int) -> list[int]:
    """Every short queue, then in growing steps to the last row."""
    shown = list(range(1, min(rows, EVERY_ROW + 1)))
    if rows <= MAX_ROWS:
        return list(range(1, rows))
    while shown[-1] < rows - 1:
        shown.append(min(rows - 1, max(shown[-1] + 1, round(shown[-1] * ROW_RATIO))))
    return shown


def _shown_columns(columns: int, room: int) -> list[int]:
    """Evenly spread, the first and the last among them."""
    count = max(2, min(columns, room))
    return [round(place * (columns - 1) / (count - 1)) for place in range(count)]


def _axis(step_ns: int, columns: Sequence[int], cell: int) -> str:
    """Round slacks in ms over the first cell that has at least so much."""
    slacks_ms = np.array(columns) * (step_ns / 1e6)
    size = 10.0 ** np.floor(np.log10(max(slacks_ms[-1], 1e-9) / 4))
    spacing = next(size * part for part in (1, 2, 2.5, 5, 10) if slacks_ms[-1] / (size * part) <= MAX_TICKS)
    line = ""
    for number in range(MAX_TICKS + 1):
        at = int(np.searchsorted(slacks_ms, number * spacing - 1e-9)) * cell
        label = f"{number * spacing:g}"
        if at + len(label) <= cell * len(columns) and (not line or at > len(line)):
            line = line.ljust(at) + label
    return line


def _last_change(variant: NDArray[np.int32], cut: NDArray[np.int32]) -> int:
    """The last row that differs from the one that holds on for all longer queues."""
    differs = (variant != variant[-1]).any(axis=1) | (cut != cut[-1]).any(axis=1)
    return int(np.flatnonzero(differs)[-1]) if differs.any() else 1
