"""`stretto capacity --cost`: the cheapest fleet of several kinds of workers whose judged plan keeps the promise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from stretto.cli import subject as about
from stretto.cli.output import print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.cli.judged_plan import JudgedPlan
    from stretto.cli.simulations import Simulations
    from stretto.cli.subject import Choice, Subject
    from stretto.sim.capacity import Requirement
    from stretto.sim.cheapest import Cheapest

MAX_ROWS = 25


def read_costs(text: str) -> dict[str, float]:
    """KIND=COST,…: what a worker of each kind costs an hour."""
    costs: dict[str, float] = {}
    for part in text.split(","):
        name, equals, price = (each.strip() for each in part.partition("="))
        try:
            cost = float(price) if equals else math.nan
        except ValueError:
            cost = math.nan
        if not name or not math.isfinite(cost):
            raise StrettoError(f"--cost: {part.strip()[:60]!r} has no price; write KIND=PRICE, as gpu=2.5,cpu=0.1")
        if name in costs:
            raise StrettoError(f"--cost names {name[:60]} twice; leave one of them out")
        costs[name] = cost
    from stretto.sim.cheapest import check_costs

    check_costs(costs)
    return costs


def read_priced_subject(
    reference: str, slo_ms: float | None, costs: Mapping[str, float]
) -> tuple[Subject, dict[str, float]]:
    """One application with its profiles on all kinds that have a price, and the prices by whole names of kinds."""
    if reference.lower().endswith(".csv"):
        if len(costs) != 1:
            raise StrettoError("a CSV has latencies of one kind of worker; give one price, or a model repository")
        chosen = about.read_subject(reference, slo_ms, next(iter(costs)))
        return chosen, dict(costs)
    from stretto.core.worker import workers
    from stretto.repository.read import read_repository

    chosen = about.read_subject(reference, slo_ms, None)
    repository = read_repository(reference)
    known = sorted({each.kind for files in repository.applications for v in files.variants for each in v.profiles})
    priced: dict[str, float] = {}
    for name, cost in costs.items():
        fitting = [kind for kind in known if kind == name] or [kind for kind in known if kind.startswith(name)]
        if not fitting:
            there = f"it has {', '.join(known)}" if known else "it has none at all"
            raise StrettoError(
                f"--cost: {reference} has no profile on workers of kind {name[:60]!r}; {there}. On such a machine run:"
                f" {repository.profile_command(name)}"
            )
        if len(fitting) > 1:
            raise StrettoError(f"--cost: {name[:60]!r} is {' or '.join(fitting)}; write more of its name")
        if fitting[0] in priced:
            raise StrettoError(f"--cost names {fitting[0]} twice; leave one of them out")
        priced[fitting[0]] = cost
    fleet = tuple(worker for kind in priced for worker in workers(1, kind))
    deployment, warnings = repository.deployment(fleet)
    application = replace(deployment.applications[0], slo_ns=chosen.application.slo_ns)
    return replace(chosen, application=application, kind=next(iter(priced)), warnings=warnings), priced


def cheapest(
    reference: str,
    slo_ms: float | None,
    choice: Choice,
    requirement: Requirement,
    given: Mapping[str, float],
    max_workers: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Search, simulate each fleet that promises enough on other arrivals, and print both."""
    from stretto.cli.judged_plan import JudgedPlan, judged_fleet
    from stretto.cli.simulations import Simulations
    from stretto.sim.bounds import fluid_fleet
    from stretto.sim.cheapest import cheapest_fleet

    if not choice.is_judged:
        raise StrettoError("--cost asks the judge about fleets of several kinds; leave out --planner and its options")
    chosen, costs = read_priced_subject(reference, slo_ms, given)
    chosen.check_accuracy()
    whole = chosen.on(dict.fromkeys(costs, 1))

    def promise(fleet: dict[str, int]) -> JudgedPlan:
        return judged_fleet(chosen, choice, fleet, requirement.load)

    def bound(held: Mapping[str, int]) -> Any:
        return fluid_fleet(
            whole,
            (requirement.load,),
            costs,
            accuracy=requirement.min_accuracy,
            answered=1 - requirement.max_violation,
            held=held,
            most=max_workers,
        )

    with progress_bar("looking for the cheapest fleet") as progress:

        def told(tried: int) -> None:
            if progress is not None:
                progress(0.9 * (1 - 0.85**tried))  # how many will be tried is not known

        simulations: Simulations[JudgedPlan] = Simulations(JudgedPlan.simulated, requirement, seconds)
        search = cheapest_fleet(
            promise, bound, requirement, costs, most=max_workers, confirms=simulations.confirm, progress=told
        )
    if as_json:
        print_json(_as_dict(chosen, requirement, search, simulations))
    else:
        _print(chosen, requirement, search, simulations)


def _as_dict(
    chosen: Subject, requirement: Requirement, search: Cheapest[JudgedPlan], simulations: Simulations[JudgedPlan]
) -> dict[str, Any]:
    best = search.best
    return {
        "application": chosen.application.name,
        "slo_ms": chosen.application.slo_ns / 1e6,
        "load": requirement.load,
        "min_accuracy": requirement.min_accuracy,
        "max_violation": requirement.max_violation,
        "fleet": search.fleet(),
        "cost_per_hour": best.cost,
        "cost_per_hour_at_least": search.least_cost,
        "expected": {"accuracy": best.promise.accuracy, "violation": best.promise.violation},
        "simulated": simulations.as_dict(best.promise),
        "tried": [
            {
                "fleet": search.fleet(trial),
                "cost_per_hour": trial.cost,
                "accuracy": trial.promise.accuracy,
                "violation": trial.promise.violation,
                "simulated": simulations.as_dict(trial.promise),
                "is_enough": trial.is_enough,
            }
            for trial in search.tried
        ],
        "judged": best.promise.as_dict(),
        "warnings": list(chosen.warnings),
    }


def _print(
    chosen: Subject, requirement: Requirement, search: Cheapest[JudgedPlan], simulations: Simulations[JudgedPlan]
) -> None:
    from stretto.report.tables import figures_table

    for warning in chosen.warnings:
        typer.echo(f"warning: {warning}", err=True)
    near = sorted(search.tried, key=lambda trial: abs(trial.cost - search.best.cost))[:MAX_ROWS]
    rows = {
        " + ".join(f"{count} {kind}" for kind, count in search.fleet(trial).items() if count): [
            f"{trial.cost:,.4g}",
            f"{trial.promise.accuracy:.4f}",
            about.at_most(trial.promise.violation),
            "cheapest" if trial is search.best else simulations.verdict(trial.promise),
        ]
        for trial in search.tried
        if trial in near
    }
    slo_ms = chosen.application.slo_ns / 1e6
    title = f"{chosen.application.name}: {requirement.load:,.6g} queries/s, SLO {slo_ms:g} ms, judged"
    print_tables(figures_table(title, "fleet", ["cost an hour", "accuracy", "not on time", ""], rows))
    asked = f"accuracy ≥ {requirement.min_accuracy:g} and at most {requirement.max_violation:.3%} not on time"
    fleet = " and ".join(f"{count} of {kind}" for kind, count in search.fleet().items() if count)
    typer.echo(f"{fleet}, {search.best.cost:,.4g} an hour, for {asked}")
    promise = search.best.promise
    typer.echo(f"  served by  {promise.verdict.candidate}")
    typer.echo(f"  expected   accuracy {promise.accuracy:.4f}, not on time {about.at_most(promise.violation)}")
    typer.echo(f"  simulated  {simulations.told(promise)}")
    typer.echo(f"  no fleet of these kinds costs less than {search.least_cost:,.4g} an hour, by the fluid bound")
