"""`stretto simulate`: one scenario under one planner, or under several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.inputs import adjusted, under_planners
from stretto.cli.options import Compare, Json, Planner, Plot, ScenarioFile, Seconds, Seed
from stretto.cli.output import check_plot, check_writable, part_of, print_json, print_tables, progress_bar
from stretto.cli.run import run_scenario
from stretto.core.errors import StrettoError

Out = Annotated[
    Path | None, typer.Option(metavar="FILE.npz", help="Write every query's outcome; same seed, same bytes.")
]


def simulate(
    scenario: ScenarioFile,
    planner: Planner = None,
    compare: Compare = None,
    seconds: Seconds = None,
    seed: Seed = None,
    as_json: Json = False,
    plot: Plot = None,
    out: Out = None,
) -> None:
    """Simulate a scenario and say what became of its queries.

    \b
    Examples:
      stretto simulate examples/resnet50_8_workers.toml
      stretto simulate examples/bursty.toml --planner clockwork --seconds 10
      stretto simulate examples/bursty.toml --compare symphony,symphony_eager,clockwork --plot compare.png
      stretto simulate examples/bursty.toml --json --out outcomes.npz
      stretto simulate examples/jellyfish/four_clients.toml --plot clients.png
    """
    from stretto.cli.scenario.read import read_scenario

    check_plot(plot)
    check_writable(out, "--out", (".npz",))
    scenarios = under_planners(adjusted(read_scenario(scenario), seed, seconds), planner, compare)
    if out is not None and len(scenarios) > 1:
        raise StrettoError("--out holds the outcomes of one planner; leave out --compare")
    if next(iter(scenarios.values())).clients:
        from stretto.cli.simulate_network import simulate_clients

        simulate_clients(scenarios, as_json, plot, out)
        return
    wants_queries = out is not None or (plot is not None and len(scenarios) == 1)
    results = {}
    with progress_bar("simulating") as progress:
        for number, (name, planner_scenario) in enumerate(scenarios.items()):
            results[name] = run_scenario(
                planner_scenario, record=wants_queries, progress=part_of(progress, number, len(scenarios))
            )
    first = next(iter(scenarios.values()))
    summaries = {name: result.summary for name, result in results.items()}
    if out is not None:
        results[first.planner.name].save(out)
    if plot is not None:
        from stretto.report import plots

        fleet = results[first.planner.name].fleet if len(results) == 1 else None
        if fleet is not None:
            from stretto.report.fleet import fleet_figure

            plots.save(fleet_figure(fleet, first.name), plot)
        elif len(results) == 1:
            plots.save(plots.run_figure(results[first.planner.name], first.name), plot)
        else:
            plots.save(plots.comparison_figure(summaries, first.name), plot)
    if as_json:
        from stretto.report.fleet import fleet_as_dict

        runs = {
            name: summary.as_dict()
            | ({} if (fleet := results[name].fleet) is None else {"fleet": fleet_as_dict(fleet)})
            for name, summary in summaries.items()
        }
        print_json({"scenario": first.name, "seed": first.seed, "runs": runs})
        return
    from stretto.report.tables import application_table, comparison_table, run_table

    title = f"{first.name}: {first.seconds:g} s, seed {first.seed}"
    if len(summaries) > 1:
        print_tables(comparison_table(summaries, title))
        return
    summary = summaries[first.planner.name]
    print_tables(run_table(summary, f"{title}, {first.planner.name}"))
    if len(summary.applications) > 1:
        print_tables(application_table(summary.applications))
    fleet = results[first.planner.name].fleet
    if fleet is not None:
        from stretto.report.fleet import fleet_table

        print_tables(fleet_table(fleet))
