"""`stretto simulate` for a scenario with clients behind networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.output import part_of, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.read import Scenario
    from stretto.sim.network.result import NetworkResult


def run_network(scenario: Scenario, progress: Progress | None = None) -> NetworkResult:
    """As it would be served, with clients that send what they are told."""
    from stretto.cli.run import session_of
    from stretto.sim.network.run import simulate_network

    session = session_of(scenario)
    return simulate_network(
        scenario.deployment,
        session,
        scenario.clients,
        seconds=scenario.seconds,
        seed=scenario.seed,
        service=scenario.service,
        delays=scenario.delays,
        replan_s=session.rhythm.period_for(scenario.deployment) or None,
        warmup_s=scenario.warmup_seconds,
        correction=scenario.correction,
        progress=progress,
    )


def simulate_clients(scenarios: Mapping[str, Scenario], as_json: bool, plot: Path | None, out: Path | None) -> None:
    """The scenario under each planner: what became of the clients' frames."""
    if plot is not None and len(scenarios) > 1:
        raise StrettoError("a plot of clients is of one planner; leave out --compare")
    results = {}
    with progress_bar("simulating") as progress:
        for number, (name, scenario) in enumerate(scenarios.items()):
            results[name] = run_network(scenario, part_of(progress, number, len(scenarios)))
    first = next(iter(scenarios.values()))
    title = f"{first.name}: {len(first.clients)} clients, {first.seconds:g} s, seed {first.seed}"
    if out is not None:
        _save(results[first.planner.name], out)
    if plot is not None:
        from stretto.report.network import network_figure
        from stretto.report.plots import save

        drawn = results[first.planner.name]
        save(network_figure(drawn, first.deployment, first.clients, f"{title}, {first.planner.name}"), plot)
    summaries = {name: result.summary for name, result in results.items()}
    if as_json:
        runs = {name: summary.as_dict() for name, summary in summaries.items()}
        print_json({"scenario": first.name, "seed": first.seed, "runs": runs})
        return
    from stretto.report.network import clients_table, network_table

    print_tables(network_table(summaries, title))
    if len(summaries) == 1:
        print_tables(clients_table(next(iter(summaries.values()))))


def _save(result: NetworkResult, path: Path) -> None:
    """One row per frame; same seed, same bytes."""
    import numpy as np

    try:
        with path.open("wb") as file:
            arrays: dict[str, Any] = {name: result.frames[name] for name in result.frames.dtype.names or ()}
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise StrettoError(f"{path} cannot be written ({error.strerror or 'output error'})") from None
