"""Runs a scenario in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stretto.cli.output import progress_bar

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.cli.scenario.autoscale import ScenarioScaling
    from stretto.cli.scenario.read import Scenario
    from stretto.core.deployment import Deployment
    from stretto.planners.parts.responses import Responses
    from stretto.planning.session import Session
    from stretto.sim.autoscale import Autoscaling, FleetJudge
    from stretto.sim.results import Result
    from stretto.twin.classes import Classified
    from stretto.twin.setting import Setting

OTHER_SEED = 7919
_measured: dict[tuple[Any, ...], dict[str, Responses]] = {}  # by deployment, shares of the load and service


def run_scenario(scenario: Scenario, *, record: bool = False, progress: Progress | None = None) -> Result:
    """As it would be served. The planner knows the mean rates, as an owner would state them; what comes is up to the
    load.
    """
    from stretto.sim.simulator import simulate
    from stretto.twin.classes import Classes
    from stretto.twin.conditional import Drawn

    deployment, autoscaling = _scaled(scenario)
    rates = tuple(scenario.source.expected_rates(deployment, scenario.seconds))
    session = session_of(scenario)
    drawn = None
    if scenario.evidence and (classes := Classes.of(deployment, scenario.evidence, {})) is not None:
        drawn = Drawn.of(scenario.source, deployment, scenario.seconds, scenario.seed, classes)
    classified = None if drawn is None else drawn.classified
    result = simulate(
        deployment,
        session,
        scenario.source if drawn is None else drawn,
        seconds=scenario.seconds,
        seed=scenario.seed,
        service=scenario.service,
        delays=scenario.delays,
        replan_s=session.rhythm.period_for(scenario.deployment) or None,
        warmup_s=scenario.warmup_seconds,
        record=record or classified is not None,
        correction=scenario.correction,
        expected_rates=rates,
        evidence=None if classified is None else classified.theta(),
        autoscaling=autoscaling,
        progress=progress,
    )
    return result if classified is None else by_true_class(result, classified, round(scenario.warmup_seconds * 1e9))


def by_true_class(result: Result, classified: Classified, from_ns: int) -> Result:
    """The result with answers that count by their queries' true classes, which only a simulation knows."""
    assert result.queries is not None
    queries, summary = result.queries, result.summary

    def counted(figures: Any, application: int | None = None) -> Any:
        correct = classified.correct(queries, from_ns, application)
        accuracy = min(1.0, correct / figures.on_time_rate) if figures.on_time_rate > 0 else 0.0
        utility = classified.utility(queries, from_ns, application)
        return replace(figures, correct_on_time=correct, accuracy=accuracy, utility=utility)

    parts = tuple(counted(part, number) for number, part in enumerate(summary.applications))
    return replace(result, summary=replace(counted(summary), applications=parts))


def _scaled(scenario: Scenario) -> tuple[Deployment, Autoscaling | None]:
    """With a slot for every worker that may come."""
    from stretto.sim.autoscale import Autoscaling, accuracy_floor, with_slots

    if scenario.autoscale is None:
        return scenario.deployment, None
    options = scenario.autoscale.options
    deployment, begin = with_slots(scenario.deployment, options)
    accuracy, costs = scenario.autoscale.accuracy, {kind: bounds.cost for kind, bounds in options.kinds.items()}
    floor = None if accuracy is None else accuracy_floor(deployment, accuracy, costs)
    judge_s = scenario.autoscale.judge_s
    judge = None if judge_s is None else _fleet_judge(scenario, deployment, scenario.autoscale)
    return deployment, Autoscaling(options, begin, floor, judge, judge_s or 0.0)


def _fleet_judge(scenario: Scenario, deployment: Deployment, scaling: ScenarioScaling) -> FleetJudge:
    """Under the service and the delays that the scenario states, with the plan that it would be served by."""
    from stretto.core.advice import FleetNeeds
    from stretto.core.verdict import Candidate
    from stretto.planners.registry import planner_entry
    from stretto.planning.judged_fleet import ABOVE
    from stretto.twin.spot import fleet_judge

    kinds, planner = scaling.options.kinds, scenario.planner
    needs = FleetNeeds(
        {kind: each.cost for kind, each in kinds.items()},
        {kind: (each.least, each.most) for kind, each in kinds.items()},
        scaling.options.bad_rate,
        scaling.accuracy or 0.0,
        ABOVE,
    )
    given = tuple((name, value) for name, value in planner.options.items() if not isinstance(value, str))
    served = Candidate(planner.name, given, tuple(planner.variants.items()))
    candidates = None if "judge" in planner_entry(planner.name).ports else (served,)
    return fleet_judge(deployment, setting_of(scenario, deployment), needs, candidates)


def session_of(scenario: Scenario) -> Session:
    """With a judge on the spot and response latencies measured beforehand, for planners that ask for them."""
    from stretto.sim.ports import simulator_ports
    from stretto.twin.spot import SpotJudge

    judge = SpotJudge(partial(setting_of, scenario))
    return scenario.session(replace(simulator_ports(), responses=partial(responses_of, scenario), judge=judge))


def setting_of(scenario: Scenario, deployment: Deployment) -> Setting:
    """Candidates are judged under what the scenario states, on other seeds than the run's."""
    from stretto.twin.measure import setting_from_scenario

    setting = setting_from_scenario(
        deployment,
        scenario.source,
        scenario.service,
        scenario.delays,
        seconds=scenario.seconds,
        seed=scenario.seed + OTHER_SEED,
        clients=scenario.clients,
    )
    return replace(setting, evidence=scenario.evidence)


def responses_of(scenario: Scenario, deployment: Deployment, rates: Sequence[float] | None) -> dict[str, Responses]:
    """Response latencies, measured once in a command for all rates that share the workers out alike."""
    from stretto.sim.responses import measured_responses

    total = sum(rates or ())
    shares = tuple(round(rate / total, 9) for rate in rates) if rates and total > 0 else None
    key = (deployment, shares, scenario.service)
    if key not in _measured:
        with progress_bar("measuring response latencies") as progress:
            _measured[key] = measured_responses(deployment, rates=shares, service=scenario.service, progress=progress)
    return _measured[key]
