"""`stretto goodput`: the highest rate at which every application's p99 meets its SLO."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.bound import bounds_of
from stretto.cli.inputs import adjusted, described_scenario, under_planners
from stretto.cli.options import (
    Arrivals,
    Compare,
    Json,
    Model,
    OptionalScenarioFile,
    Planner,
    Plot,
    Seconds,
    Seed,
    SloMs,
    Workers,
)
from stretto.cli.output import check_plot, part_of, print_json, print_tables, progress_bar
from stretto.cli.run import run_scenario
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.read import Scenario
    from stretto.sim.goodput import GoodputResult
    from stretto.sim.results import Summary

FIRST_GUESS = 0.8  # of the fluid bound
Seeds = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="A rate holds if it holds for most of N seeds.")]


def goodput(
    scenario: OptionalScenarioFile = None,
    model: Model = None,
    slo_ms: SloMs = None,
    workers: Workers = None,
    arrivals: Arrivals = None,
    planner: Planner = None,
    compare: Compare = None,
    seeds: Seeds = 3,
    seconds: Seconds = None,
    seed: Seed = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Find the highest rate that still meets every SLO.

    The rate holds where at most 1% of every application's queries are late, dropped or failed.

    \b
    Examples:
      stretto goodput --model symphony_1080ti:ResNet50 --slo-ms 25 --workers 8
      stretto goodput --model symphony_a100:BERT --workers 4 --compare symphony,clockwork --seconds 10
      stretto goodput examples/bursty.toml --seeds 5 --json
    """
    check_plot(plot)
    described = adjusted(described_scenario(scenario, model, slo_ms, workers, arrivals), seed, seconds)
    scenarios = under_planners(described, planner, compare)
    bounds = bounds_of(described)
    if bounds.fluid <= 0:
        raise StrettoError("an application has no variant that answers a single query within its SLO; raise the SLO")
    results = {}
    with progress_bar("searching") as progress:
        for number, (name, planner_scenario) in enumerate(scenarios.items()):
            part = part_of(progress, number, len(scenarios))
            results[name] = search(planner_scenario, FIRST_GUESS * bounds.fluid, seeds, part)
    limit = bounds.staggered or bounds.fluid
    if plot is not None:
        from stretto.report import plots

        plots.save(plots.goodput_figure(results, described.name, limit), plot)
    if as_json:
        planners = {
            name: {"goodput": result.rate, "failed": result.failed, "probes": len(result.probes)}
            for name, result in results.items()
        }
        bound = {"fluid": bounds.fluid, "staggered": bounds.staggered, "uncoordinated": bounds.uncoordinated}
        settings = {"seconds": described.seconds, "seed": described.seed, "seeds": seeds}
        print_json({"scenario": described.name, **settings, "planners": planners, "bounds": bound})
        return
    from stretto.report.tables import figures_table, share, whole

    kind = "fluid" if bounds.staggered is None else "staggered"
    rows = {
        name: [whole(result.rate), whole(result.failed), share(result.rate / limit), str(len(result.probes))]
        for name, result in results.items()
    }
    columns = ["goodput /s", "first failure /s", f"of the {kind} bound", "runs"]
    title = f"{described.name}: {seeds} seeds of {described.seconds:g} s"
    print_tables(figures_table(title, "planner", columns, {**rows, f"{kind} bound": [whole(limit), "", "", ""]}))


def search(scenario: Scenario, guess: float, seeds: int, progress: Progress | None) -> GoodputResult:
    """The goodput of one planner, over `seeds` seeds from the scenario's on."""
    from stretto.sim.goodput import find_goodput

    def run(rate: float, seed: int) -> Summary:
        return run_scenario(replace(scenario.at_rate(rate), seed=seed)).summary

    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    return find_goodput(run, guess=guess, seeds=numbers, progress=progress)
