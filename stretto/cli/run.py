"""Runs a scenario in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.read import Scenario
    from stretto.sim.results import Result


def run_scenario(scenario: Scenario, *, record: bool = False, progress: Progress | None = None) -> Result:
    """The planner knows the mean rates, as an owner would state them; what comes is up to the load."""
    from stretto.sim.simulator import simulate

    return simulate(
        scenario.deployment,
        scenario.make_planner(),
        scenario.source,
        seconds=scenario.seconds,
        seed=scenario.seed,
        service=scenario.service,
        replan_s=scenario.planner.replan_s,
        warmup_s=scenario.warmup_seconds,
        record=record,
        correction=scenario.correction,
        expected_rates=scenario.source.expected_rates(scenario.deployment, scenario.seconds),
        progress=progress,
    )
