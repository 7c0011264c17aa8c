"""Runs a scenario in the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.read import Scenario
    from stretto.planners.model_switching import Responses
    from stretto.sim.results import Result

_measured: dict[tuple[Any, ...], dict[str, Responses]] = {}  # by deployment, shares of the load and service


def run_scenario(scenario: Scenario, *, record: bool = False, progress: Progress | None = None) -> Result:
    """The planner knows the mean rates, as an owner would state them; what comes is up to the load."""
    from stretto.planners.ports import Ports
    from stretto.planners.registry import planner_entry
    from stretto.sim.simulator import simulate
    from stretto.sim.trial import simulated_trial

    rates = tuple(scenario.source.expected_rates(scenario.deployment, scenario.seconds))
    responses = None
    if "responses" in planner_entry(scenario.planner.name).ports:
        responses = responses_of(scenario, rates, _part(progress, 0.0, 0.5))
        progress = _part(progress, 0.5, 1.0)
    return simulate(
        scenario.deployment,
        scenario.make_planner(Ports(trial=simulated_trial, responses=responses)),
        scenario.source,
        seconds=scenario.seconds,
        seed=scenario.seed,
        service=scenario.service,
        replan_s=scenario.planner.replan_s,
        warmup_s=scenario.warmup_seconds,
        record=record,
        correction=scenario.correction,
        expected_rates=rates,
        progress=progress,
    )


def responses_of(
    scenario: Scenario, rates: tuple[float, ...], progress: Progress | None = None
) -> dict[str, Responses]:
    """Response latencies, measured once in a command for all rates that share the workers out alike."""
    from stretto.sim.responses import measured_responses

    total = sum(rates)
    shares = tuple(round(rate / total, 9) for rate in rates) if total > 0 else rates
    key = (scenario.deployment, shares, scenario.service)
    if key not in _measured:
        _measured[key] = measured_responses(
            scenario.deployment, rates=shares, service=scenario.service, progress=progress
        )
    return _measured[key]


def _part(progress: Progress | None, begin: float, end: float) -> Progress | None:
    return None if progress is None else lambda fraction: progress(begin + (end - begin) * fraction)
