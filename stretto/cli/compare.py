"""`stretto compare`: the batching systems on one bursty load, simulated, from easy to too much, in under a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Json
from stretto.cli.output import check_plot, print_json, print_tables, progress_bar
from stretto.cli.run import run_scenario

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.read import Scenario
    from stretto.sim.results import Summary

# Ten models of the Symphony paper's table 5 on 24 workers; the first is called most. Bursts: gaps with a squared
# variation of 1/0.3.
MODELS = (
    *("ResNet50", "ResNet101", "DenseNet121", "EfficientNetB0", "MobileNetV2"),
    *("InceptionV3", "NASNetMobile", "BERT", "SSDMobilenet", "Xception"),
)
HEAD = """
name = "ten bursty models on 24 workers"
[cluster]
workers = 24
[load]
kind = "gamma"
shape = 0.3
rate = 5400
popularity = "zipf"
zipf_exponent = 0.9
"""
JUDGED = "judged"
MODEL = '[[application]]\nname = "{0}"\n[[application.variant]]\npublished = "symphony_1080ti:{0}"\n'

WORDS = {
    JUDGED: "judged (ours)",
    "symphony_batch_aware": "Symphony + batch-aware",
    "symphony": "Symphony (deferred)",
    "symphony_eager": "Symphony, eager twin",
    "clockwork": "Clockwork",
    "clockwork_filling": "Clockwork, filling batches",
    "nexus": "Nexus",
    "clipper": "Clipper",
    "fixed_delay": "fixed delay",
}
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)  # of the comparison's rate

Seconds = Annotated[float, typer.Option(metavar="S", min=0.1, max=3600, help="Simulated seconds of each run.")]
ComparePlot = Annotated[Path, typer.Option(metavar="FILE", help="Where the plot goes (.png, .svg or .pdf).")]
OneMore = Annotated[
    str | None, typer.Option(metavar="NAME", help="One more: see stretto planners, or MODULE:FUNCTION.")
]


def compare(
    seconds: Seconds = 20.0,
    planner: OneMore = None,
    plot: ComparePlot = Path("stretto_compare.png"),
    as_json: Json = False,
) -> None:
    """Compare the batching systems on a bursty load, in simulation.

    Ten applications on 24 workers, from half of the load that they can carry to more: a table, a plot, what was gained.

    \b
    Examples:
      stretto compare
      stretto compare --seconds 5 --plot compare.svg
      stretto compare --planner my_planners:my_planner
    """
    from stretto.cli.scenario.read import parse_scenario
    from stretto.report import plots

    check_plot(plot)
    words = WORDS if planner is None else {planner: planner} | WORDS
    runs = len(words) * len(LOADS)
    typer.echo(f"{runs} runs; the first time, about a minute goes into compiling the dispatcher …", err=True)
    scenario = parse_scenario(HEAD + "".join(MODEL.format(model) for model in MODELS), "compare")
    scenario = replace(scenario, seconds=seconds)
    rate = round(sum(scenario.source.expected_rates(scenario.deployment, seconds)), 6)
    for name in words:
        scenario.with_planner(name)  # a wrong name is told before anything runs
    with progress_bar("simulating") as progress:
        curves = run_all(scenario, list(words), rate, progress)
    at_rate = {name: dict(points)[rate] for name, points in curves.items()}
    plots.save(plots.rate_figure(curves, rate, scenario.name, words), plot)
    if as_json:
        print_json(
            {
                "scenario": scenario.name,
                "seconds": seconds,
                "seed": scenario.seed,
                "goodput": {name: {f"{r:g}": s.goodput for r, s in points} for name, points in curves.items()},
                "runs": {name: summary.as_dict() for name, summary in at_rate.items()},
            }
        )
        return
    from stretto.report.tables import comparison_table

    title = f"{scenario.name}, {rate:,.0f} queries/s, {seconds:g} s, seed {scenario.seed}"
    print_tables(comparison_table(at_rate, title, words))
    typer.echo(f"plot: {plot}")
    typer.echo(gains({name: at_rate[name] for name in WORDS}))


def run_all(
    scenario: Scenario, names: Sequence[str], rate: float, progress: Progress | None
) -> dict[str, list[tuple[float, Summary]]]:
    """Every planner at every load, on the same arrivals."""
    curves: dict[str, list[tuple[float, Summary]]] = {name: [] for name in names}
    steps = [(name, load) for name in names for load in LOADS]
    for number, (name, load) in enumerate(steps):
        point = scenario.with_planner(name).at_rate(rate * load)
        curves[name].append((rate * load, run_scenario(point).summary))
        if progress is not None:
            progress((number + 1) / len(steps))
    return curves


def gains(summaries: Mapping[str, Summary]) -> str:
    """What deferring and pruning brought, in words, from the numbers at hand."""
    aware, deferred, eager = (summaries[name] for name in ("symphony_batch_aware", "symphony", "symphony_eager"))
    ours = [name for name in summaries if name.startswith("symphony") or name == JUDGED]
    others = {name: summary for name, summary in summaries.items() if name not in ours}
    rival = max(others, key=lambda name: others[name].goodput)
    return (
        f"Deferring batches answered {_change(deferred, eager)} queries on time than starting them eagerly "
        f"(mean batch {eager.batch_mean:.1f} → {deferred.batch_mean:.1f}); batch-aware pruning then answered "
        f"{_change(aware, deferred)} still, {aware.on_time_rate:.1%} of all, and {_change(aware, others[rival])} "
        f"than {WORDS[rival]}, the best of the others ({others[rival].on_time_rate:.1%})."
    )


def _change(new: Summary, old: Summary) -> str:
    if old.goodput <= 0:
        return "more"
    change = new.goodput / old.goodput - 1
    return f"{abs(change):.0%} {'more' if change >= 0 else 'fewer'}"
