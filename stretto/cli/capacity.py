"""`stretto capacity`: how many workers an application needs, by what its policy promises, checked by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import subject as about
from stretto.cli.options import Json, Plot
from stretto.cli.output import check_plot, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.judged_plan import JudgedPlan
    from stretto.cli.simulations import Simulations
    from stretto.cli.subject import Choice, Subject
    from stretto.planners.promise import Promise
    from stretto.sim.capacity import Capacity, Requirement
    from stretto.sim.results import Summary

    Promised = Promise | JudgedPlan

CURVE = 10  # numbers of workers that a plot shows at least

MinAccuracy = Annotated[float, typer.Option(metavar="A", help="Answers are at least so accurate (a fraction).")]
MaxViolation = Annotated[float, typer.Option(metavar="V", help="At most this share of queries is not on time.")]
MaxWorkers = Annotated[int, typer.Option(metavar="N", help="Look no further.")]
Cost = Annotated[
    str | None,
    typer.Option(metavar="KIND=PRICE,…", help="The cheapest fleet of these kinds, at so much an hour for a worker."),
]
Seconds = Annotated[float, typer.Option(metavar="S", help="Simulated seconds of each of three runs.")]


def capacity(
    app: about.App,
    load: about.LoadRate,
    min_accuracy: MinAccuracy,
    max_violation: MaxViolation = 0.01,
    slo_ms: about.SloMs = None,
    planner: about.PlannerName = None,
    kind: about.Kind = None,
    arrivals: about.Arrivals = None,
    slack_steps: about.SlackSteps = None,
    max_queue: about.MaxQueue = None,
    batching: about.Batching = None,
    balancing: about.Balancing = None,
    late: about.LateQueries = None,
    pruning: about.Pruning = None,
    max_workers: MaxWorkers = 1024,
    cost: Cost = None,
    seconds: Seconds = 30.0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Find the fewest workers that answer a load accurately enough and on time.

    The number is the fewest whose judged plan promises it, or with --planner a policy of that planner, and of which a
    simulation on other arrivals says the same. A number whose simulation falls short is told of, and a larger one is
    looked for.

    \b
    Examples:
      stretto capacity zoo:fashion --load 20000 --min-accuracy 0.9 --slo-ms 5
      stretto capacity latencies.csv --slo-ms 150 --load 2000 --min-accuracy 0.75 --plot capacity.png
      stretto capacity models/app --load 2000 --min-accuracy 0.9 --cost gpu=2.5,cpu=0.1
    """
    from stretto.cli.judged_plan import JudgedPlan, fewest_by_bound, judged_plan
    from stretto.cli.simulations import Simulations
    from stretto.planners.parts.task import task_of
    from stretto.planners.promise import promise_of
    from stretto.sim.capacity import Requirement, least_workers, workers_needed
    from stretto.sim.simulator import simulate

    check_plot(plot)
    about.check_load(load)
    about.check_workers(max_workers)
    if not 0.1 <= seconds <= 3600:
        raise StrettoError(f"--seconds is {seconds:g}; it must be from 0.1 to 3600")
    requirement = Requirement(load, min_accuracy, max_violation)
    choice = about.read_choice(
        planner,
        arrivals,
        {"slack_steps": slack_steps, "max_queue": max_queue},
        {"batching": batching, "balancing": balancing, "late": late, "pruning": pruning},
    )
    if cost is not None:
        from stretto.cli.cheapest import cheapest, read_costs

        for option, given in (("--kind", kind), ("--plot", plot)):
            if given is not None:
                raise StrettoError(f"{option} does not go with --cost, which names the kinds; leave one of them out")
        cheapest(app, slo_ms, choice, requirement, read_costs(cost), max_workers, seconds, as_json)
        return
    chosen = about.read_subject(app, slo_ms, kind)
    chosen.check_accuracy()
    least = least_workers(task_of(chosen.deployment(1), 0), requirement)
    if choice.is_judged:
        least = fewest_by_bound(chosen, requirement, least, max_workers)

    def promise(count: int) -> Promised:
        if choice.is_judged:
            return judged_plan(chosen, choice, count, load)
        return promise_of(choice.make(), chosen.deployment(count), load)

    def simulated(promised: Promised, seconds: float, seed: int) -> Summary:
        """At a known load."""
        if isinstance(promised, JudgedPlan):
            return promised.simulated(seconds, seed)
        deployment = chosen.deployment(promised.workers)
        return simulate(deployment, choice.make(), choice.source(load), seconds=seconds, seed=seed).summary

    simulations: Simulations[Promised] = Simulations(simulated, requirement, seconds)
    with progress_bar("looking for a number of workers") as progress:

        def on_tried(tried: int) -> None:
            if progress is not None:
                progress(1 - 0.85**tried)  # how many will be tried is not known

        first_step = 1 if choice.is_judged else None  # the bound is near, and judging takes seconds
        needed = workers_needed(
            promise,
            requirement,
            least=least,
            most=max_workers,
            step=first_step,
            confirms=simulations.confirm,
            progress=on_tried,
        )
        curve = list(needed.tried)
        if plot is not None and not choice.is_judged:
            curve = _curve(needed, promise, least, max_workers)
    if plot is not None:
        from stretto.report.capacity import capacity_figure
        from stretto.report.plots import save

        title = f"{chosen.application.name}: {load:,.6g} queries/s, SLO {chosen.application.slo_ns / 1e6:g} ms"
        points = [(each.workers, each.accuracy, each.violation) for each in curve]
        answer = simulations.of(needed.promise)
        assert answer is not None
        seen = answer.workers, answer.accuracy, answer.violation
        save(capacity_figure(points, seen, min_accuracy, max_violation, f"{title}, {choice.name}"), plot)
    if as_json:
        print_json(_document(chosen, choice, requirement, needed, curve, simulations))
    else:
        _print(chosen, choice, requirement, needed, simulations, plot)


def _document(
    chosen: Subject,
    choice: Choice,
    requirement: Requirement,
    needed: Capacity[Promised],
    curve: Sequence[Promised],
    simulations: Simulations[Promised],
) -> dict[str, Any]:
    from stretto.cli.judged_plan import JudgedPlan

    promise = needed.promise
    return {
        "application": chosen.application.name,
        "kind": chosen.kind,
        "planner": choice.name,
        "options": choice.options,
        "slo_ms": chosen.application.slo_ns / 1e6,
        "load": requirement.load,
        "min_accuracy": requirement.min_accuracy,
        "max_violation": requirement.max_violation,
        "workers": needed.workers,
        "expected": promise.figures(),
        "simulated": simulations.as_dict(promise),
        "tried": [
            {
                "workers": each.workers,
                "accuracy": each.accuracy,
                "violation": each.violation,
                "simulated": simulations.as_dict(each),
            }
            for each in curve
        ],
        "judged": promise.as_dict() if isinstance(promise, JudgedPlan) else None,
        "warnings": list(chosen.warnings),
    }


def _curve(needed: Capacity[Promised], promise: object, least: int, most: int) -> list[Promised]:
    """What was tried, and more numbers in between, from the least that could do to twice the answer."""
    assert callable(promise)
    known = {promised.workers: promised for promised in needed.tried}
    top = min(most, max(2 * needed.workers, least + CURVE))
    for place in range(CURVE + 1):
        count = least + round((top - least) * place / CURVE)
        if count not in known:
            known[count] = promise(count)
    return [known[count] for count in sorted(known) if count <= top]


def _print(
    chosen: Subject,
    choice: Choice,
    requirement: Requirement,
    needed: Capacity[Promised],
    simulations: Simulations[Promised],
    plot: Path | None,
) -> None:
    from stretto.cli.judged_plan import JudgedPlan
    from stretto.cli.simulations import FALLS_SHORT
    from stretto.report.tables import figures_table

    for warning in chosen.warnings:
        typer.echo(f"warning: {warning}", err=True)
    rows = {
        f"{promised.workers}": [
            f"{promised.accuracy:.4f}",
            about.at_most(promised.violation),
            simulations.verdict(promised),
        ]
        for promised in needed.tried
    }
    slo_ms = chosen.application.slo_ns / 1e6
    title = f"{chosen.application.name}: {requirement.load:,.6g} queries/s, SLO {slo_ms:g} ms, {choice.name}"
    print_tables(figures_table(title, "workers", [*choice.columns, ""], rows))
    asked = f"accuracy ≥ {requirement.min_accuracy:g} and at most {requirement.max_violation:.3%} not on time"
    typer.echo(f"{needed.workers} worker{'s' if needed.workers != 1 else ''} for {asked}")
    if isinstance(needed.promise, JudgedPlan):
        typer.echo(f"  served by  {needed.promise.verdict.candidate}")
    least, highest = choice.words
    violation = about.at_most(needed.promise.violation)
    typer.echo(f"  expected   accuracy {least}{needed.promise.accuracy:.4f}, not on time {highest}{violation}")
    typer.echo(f"  simulated  {simulations.told(needed.promise)}")
    for promised in needed.tried:
        if simulations.verdict(promised) == FALLS_SHORT:
            typer.echo(f"  not {promised.workers}: simulated {simulations.told(promised, digits=6)}")
    if plot is not None:
        typer.echo(f"plot: {plot}")
