"""`stretto bound`: what no schedule can beat, to hold a run against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from stretto.cli.inputs import described_scenario
from stretto.cli.options import Arrivals, Json, Model, OptionalScenarioFile, Plot, SloMs, Workers
from stretto.cli.output import check_plot, print_json, print_tables

if TYPE_CHECKING:
    from stretto.cli.scenario.read import Scenario


@dataclass(frozen=True)
class Bounds:
    """Queries/s that each way of running could answer; the first two are known for one application on one kind."""

    fluid: float
    staggered: float | None
    staggered_batch: int | None
    uncoordinated: float | None
    uncoordinated_batch: int | None


def bound(
    scenario: OptionalScenarioFile = None,
    model: Model = None,
    slo_ms: SloMs = None,
    workers: Workers = None,
    arrivals: Arrivals = None,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Print upper bounds on goodput.

    With a scenario, also on correct answers at its own rate. Staggered and uncoordinated execution (Symphony section
    4.2) are for one application on workers of one kind; the fluid bound is a linear program over variants, batches and
    kinds of worker that knows no queue.

    \b
    Examples:
      stretto bound --model symphony_1080ti:ResNet50 --slo-ms 25 --workers 8
      stretto bound examples/twenty_models.toml --json
    """
    from stretto.sim.bounds import fluid_accuracy

    check_plot(plot)
    described = described_scenario(scenario, model, slo_ms, workers, arrivals)
    bounds = bounds_of(described)
    rates = described.source.expected_rates(described.deployment, described.seconds)
    at_load = None if scenario is None else fluid_accuracy(described.deployment, rates)
    if plot is not None:
        from stretto.report.plots import bound_figure, save

        named = {"uncoordinated": bounds.uncoordinated, "staggered": bounds.staggered, "fluid": bounds.fluid}
        save(bound_figure({name: rate for name, rate in named.items() if rate is not None}, described.name), plot)
    if as_json:
        print_json(
            {
                "scenario": described.name,
                "goodput": asdict(bounds),
                "at_rate": None
                if at_load is None
                else {
                    "rate": sum(rates),
                    "accuracy": at_load.accuracy,
                    "answered_share": at_load.answered_share,
                    "correct_share": at_load.correct_share,
                    "worker_use": dict(zip(described.deployment.kinds, at_load.worker_use, strict=True)),
                },
            }
        )
        return
    from stretto.report.tables import figures_table, share, whole

    rows = {}
    if bounds.staggered is not None and bounds.uncoordinated is not None:
        rows["uncoordinated execution"] = [whole(bounds.uncoordinated), str(bounds.uncoordinated_batch)]
        rows["staggered execution"] = [whole(bounds.staggered), str(bounds.staggered_batch)]
    rows["fluid bound"] = [whole(bounds.fluid), ""]
    print_tables(figures_table(f"{described.name}: bounds on goodput", "bound", ["queries/s", "batch"], rows))
    if at_load is not None:
        cells = {
            "answered in time, at most": [share(at_load.answered_share)],
            "correct and on time, at most": [share(at_load.correct_share)],
            **{
                f"workers of kind {kind} busy with that": [share(use)]
                for kind, use in zip(described.deployment.kinds, at_load.worker_use, strict=True)
            },
        }
        print_tables(figures_table(f"at its own rate, {whole(sum(rates))} queries/s", "fluid bound", ["share"], cells))


def bounds_of(scenario: Scenario) -> Bounds:
    """All bounds on the goodput of a scenario, whatever its rate."""
    from stretto.sim.bounds import fluid_goodput, staggered, uncoordinated

    deployment = scenario.deployment
    rates = scenario.source.expected_rates(deployment, scenario.seconds)
    fluid = fluid_goodput(deployment, rates)
    if len(deployment.applications) > 1 or len(deployment.kinds) > 1:
        return Bounds(fluid, None, None, None, None)
    slo_ns, workers = deployment.applications[0].slo_ns, len(deployment.workers)
    profiles = [deployment.profile(variant) for variant in range(len(deployment.variants))]
    best, alone = (
        max((bound(profile, slo_ns, workers, deployment.quantile) for profile in profiles), key=lambda b: b.throughput)
        for bound in (staggered, uncoordinated)
    )
    return Bounds(fluid, best.throughput, best.batch, alone.throughput, alone.batch)
