"""The picture of a policy says what its table does: every letter, every cut batch, nothing more."""

from pathlib import Path

import numpy as np

from stretto.core.plan import Table
from stretto.report.plots import save
from stretto.report.policy import LABEL, LETTERS, Picture, policy_figure, policy_legend, policy_text

NAMES = ("slow", "fast", "unused")
LADDER = ("unused", "fast", "slow")


def picture(variant: list[list[int]], batch: list[list[int]] | None = None, max_batch: int = 8) -> Picture:
    """Row 0 is not asked for; slack in steps of 10 ms."""
    chosen = np.array([variant[0], *variant], dtype=np.int32)
    taken = np.zeros_like(chosen) if batch is None else np.array([batch[0], *batch], dtype=np.int32)
    return Picture.of(
        Table(10_000_000, chosen, taken), NAMES, LADDER, [max_batch] * 3, 10_000_000 * (chosen.shape[1] - 1)
    )


def rows(shown: Picture, width: int = 100) -> dict[str, str]:
    """What stands behind each label."""
    lines = policy_text(shown, width).plain.splitlines()
    return {line[: LABEL - 2].strip(): line[LABEL:] for line in lines[2:]}


def test_letters_go_from_the_fastest_on_and_equal_rows_stand_together() -> None:
    shown = picture([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
    assert rows(shown) == {"1": "abbb", "2": "aabb", "3+": "aaaa"}
    assert [shown.letter(v) for v in (1, 0, -1)] == ["a", "b", "·"]


def test_batches_stand_there_where_they_are_cut() -> None:
    shown = picture([[1, 1], [1, 1], [1, 1]], [[1, 0], [1, 2], [2, 3]])
    assert rows(shown) == {"1": "a  a  ", "2": "a1 a  ", "3+": "a2 a  "}
    many = picture([[1, 1]] * 12, [[1, 1]] * 11 + [[10, 3]], max_batch=32)
    assert rows(many)["12+"] == "a10 a3  "
    # What a variant cannot take in one batch is not cut.
    assert not picture([[1, 1], [1, 1], [1, 1]], [[1, 1], [2, 2], [2, 2]], max_batch=2).cut().any()


def test_waiting_is_a_dot_and_has_no_colour() -> None:
    shown = picture([[-1, 1, -1], [1, 1, 1]])
    assert rows(shown)["1"] == "·a·"
    text = policy_text(shown)
    dots = [span.style for span in text.spans if text.plain[span.start : span.end] == "·"]
    assert dots and set(dots) == {"dim"}


def test_a_terminal_shows_each_variant_in_its_colour() -> None:
    """The styles had spaces in them, and rich left them out without a word."""
    from rich.console import Console

    shown = picture([[1, 0, -1], [1, 1, 0]])
    console = Console(force_terminal=True, color_system="truecolor", width=100)
    with console.capture() as capture:
        console.print(policy_text(shown), policy_legend(shown, [["0.9"], ["0.6"], ["0.1"]], ["accuracy"]))
    for variant in (0, 1):
        red, green, blue = shown.colour(variant)
        assert capture.get().count(f"48;2;{red};{green};{blue}m") >= 2


def test_wide_tables_are_thinned_with_both_ends_kept() -> None:
    columns = 500
    variant = np.ones((2, columns), dtype=int)
    variant[:, 0] = variant[:, -1] = 0
    line = next(iter(rows(picture(variant.tolist()), 60).values()))
    assert len(line) == 60 - LABEL
    assert line[0] == line[-1] == "b" and set(line[1:-1]) == {"a"}


def test_long_tables_are_thinned_with_short_queues_and_the_last_row_kept() -> None:
    variant = [[row % 2, row % 2] for row in range(1, 2000)]
    shown = rows(picture(variant))
    assert list(shown)[:5] == ["1", "2", "3", "4", "5"] and len(shown) < 60
    assert list(shown)[-1].endswith("+")


def test_more_variants_than_letters_still_draw() -> None:
    count = len(LETTERS) + 3
    names = [f"v{number}" for number in range(count)]
    variant = np.tile(np.arange(count, dtype=np.int32), (3, 1))
    shown = Picture.of(Table(1_000_000, variant, np.zeros_like(variant)), names, names, [8] * count, 1_000_000 * count)
    assert shown.letter(count - 1) == "?"
    assert len({shown.colour(number) for number in range(count)}) > count // 2


def test_the_legend_names_those_in_use_only() -> None:
    from rich.console import Console

    shown = picture([[1, 0, -1], [1, 1, 1]])
    console = Console(width=100, record=True, force_terminal=False)
    console.print(policy_legend(shown, [["0.9"], ["0.6"], ["0.1"]], ["accuracy"]))
    text = console.export_text()
    assert text.index("fast") < text.index("slow") < text.index("waits for more") and "unused" not in text


def test_figures_with_and_without_cut_batches(tmp_path: Path) -> None:
    plain = policy_figure(picture([[1, 0], [1, 1], [1, 1]]), "title", "note")
    assert len(plain.axes) == 1
    legend = [text.get_text() for text in plain.legends[0].get_texts()]
    assert legend == ["fast", "slow"]
    cut = policy_figure(picture([[1, -1], [1, 1], [1, 1]], [[1, 1], [1, 2], [1, 3]]), "title", "note")
    assert [axes.get_title(loc="left") for axes in cut.axes[:2]] == ["variant", "queries taken"]
    assert "waits for more" in [text.get_text() for text in cut.legends[0].get_texts()]
    for name, figure in (("plain.png", plain), ("cut.svg", cut)):
        save(figure, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_short_queues_stand_below_and_no_column_beyond_the_slo_is_seen() -> None:
    """Queues grew downwards, and a last column, of a head with all of its slack, stuck out beyond the SLO."""
    shown = picture([[1, 1, 0], [0, 0, 1], [0, 0, 1]])
    (axes,) = policy_figure(shown, "title", "note").axes
    bottom, top = axes.get_ylim()
    assert bottom == 0.5 < top == 2.5
    assert axes.get_xlim() == (0, 20)
    (image,) = axes.images
    assert image.origin == "lower" and image.get_extent() == [0, 30, 0.5, 2.5]
    first_row = image.get_array()[0]
    assert np.allclose(first_row[0], np.array(shown.colour(1)) / 255)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2+"]


def test_a_colour_belongs_to_a_variant_whatever_the_policy_uses() -> None:
    """Colours were spread over the variants in use, so that one variant looked like another in the next picture."""
    alone, both = picture([[1, 1]]), picture([[1, 0]])
    assert alone.colour(1) == both.colour(1) != both.colour(0)
