"""Tables say what the results say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import parse_scenario
from stretto.report.tables import (
    MAX_APPLICATION_ROWS,
    application_table,
    comparison_table,
    figures_table,
    milliseconds,
    run_table,
    share,
    whole,
)
from stretto.sim.results import Summary

TEXT = """
seconds = 1
[cluster]
workers = 1
[[application]]
name = "a"
slo_ms = 20
[[application.variant]]
name = "v"
alpha_ms = 1
beta_ms = 5
[load]
kind = "poisson"
rate = 900
"""


def shown(table: Any) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def overloaded() -> Summary:
    return run_scenario(parse_scenario(TEXT)).summary


def test_numbers_for_people() -> None:
    assert (whole(12345.6), share(0.98765), milliseconds(3.14159), milliseconds(1234.5)) == (
        "12,346",
        "98.77%",
        "3.14",
        "1,234",
    )


def test_a_run_shows_its_figures_and_only_the_outcomes_that_occurred() -> None:
    summary = overloaded()
    text = shown(run_table(summary, "title of the run"))
    assert "title of the run" in text
    assert whole(summary.goodput) in text and share(summary.on_time_rate) in text
    assert summary.outcomes["dropped_overload"] > 0 and "dropped, overload" in text
    assert summary.outcomes["failed"] == 0 and "failed" not in text


def test_of_many_applications_the_worst_are_shown() -> None:
    (one,) = overloaded().applications
    many = [replace(one, name=f"app-{number}", on_time_rate=number / 100) for number in range(60)]
    text = shown(application_table(many))
    assert f"the {MAX_APPLICATION_ROWS} worst of 60" in text
    assert "app-0 " in text and "app-39 " in text and "app-40 " not in text
    assert "app-1 " in shown(application_table(many[:2]))


def test_planners_side_by_side_keep_their_order_and_words() -> None:
    summary = overloaded()
    text = shown(comparison_table({"b": summary, "a": summary}, "two", {"a": "Planner A"}))
    assert text.index("│ b") < text.index("Planner A")


def test_a_long_title_is_not_broken() -> None:
    title = "a title that is a good deal wider than the numbers below it"
    assert title in shown(figures_table(title, "row", ["n"], {"x": ["1"]}))


def test_accuracy_is_compared_where_planners_differ_in_it() -> None:
    summary = overloaded()
    alike = {"one": summary, "two": summary}
    assert "accuracy" not in [column.header for column in comparison_table(alike, "title").columns]
    apart = {
        "one": replace(summary, accuracy=0.5, has_accuracy=True),
        "two": replace(summary, accuracy=0.75, has_accuracy=True),
    }
    table = comparison_table(apart, "title")
    (column,) = [column for column in table.columns if column.header == "accuracy"]
    assert list(column.cells) == ["50.00%", "75.00%"]
