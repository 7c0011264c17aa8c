"""`stretto plan`: the plan that is best for a load, as a picture with its promise; or policies for a range of loads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import subject as about
from stretto.cli.options import Json, Plot
from stretto.cli.output import WIDTH, check_plot, check_writable, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.subject import Choice, Subject
    from stretto.core.deployment import Deployment
    from stretto.core.plan import Table
    from stretto.report.policy import Picture

PolicyLoad = Annotated[
    float | None, typer.Option("--load", metavar="RATE", help="Queries/s over all workers: show the policy for it.")
]
Workers = Annotated[int, typer.Option(metavar="N", help="How many serve the application.")]
Loads = Annotated[
    str | None, typer.Option(metavar="LOW:HIGH", help="Compute the policies for a range of loads; needs --out.")
]
Out = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="With --loads: where the policies go.")]
Processes = Annotated[
    int, typer.Option(metavar="N", min=0, max=256, help="With --loads: so many at once; 0: one for each core.")
]

MOST_OF_CAPACITY = 1.05  # policies for more load than that are of no use


def plan(
    app: about.App,
    workers: Workers,
    load: PolicyLoad = None,
    slo_ms: about.SloMs = None,
    planner: about.PlannerName = None,
    kind: about.Kind = None,
    arrivals: about.Arrivals = None,
    slack_steps: about.SlackSteps = None,
    max_queue: about.MaxQueue = None,
    batching: about.Batching = None,
    balancing: about.Balancing = None,
    late: about.LateQueries = None,
    reward: about.Reward = None,
    pruning: about.Pruning = None,
    loads: Loads = None,
    out: Out = None,
    processes: Processes = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Show which plan is best for a load, which variant it takes by queue length and slack, and what it promises.

    Candidates of all planners are judged in simulation, as profiled; --planner shows the policy of one of them. What
    ramsis expects bounds what comes: answers are at least so accurate, and at most that share is not on time. With
    --balancing shortest it is an estimate: how queries reach a worker is then approximated.

    \b
    Examples:
      stretto plan zoo:fashion --workers 4 --load 20000 --slo-ms 5
      stretto plan latencies.csv --slo-ms 150 --workers 60 --load 2000 --batching variable --plot policy.png
      stretto plan zoo:fashion --workers 4 --loads 1000:50000 --out policies.npz
    """
    check_plot(plot)
    check_writable(out, "--out", (".npz",))
    about.check_workers(workers)
    choice = about.read_choice(
        planner,
        arrivals,
        {"slack_steps": slack_steps, "max_queue": max_queue},
        {"batching": batching, "balancing": balancing, "late": late, "reward": reward, "pruning": pruning},
        with_policies=loads is not None,
    )
    if (loads is None) == (load is None):
        raise StrettoError("give --load RATE to see one policy, or --loads LOW:HIGH --out FILE.npz to store many")
    if (loads is None) != (out is None):
        raise StrettoError("--loads and --out belong together: the policies for a range of loads go into a file")
    chosen = about.read_subject(app, slo_ms, kind)
    if loads is not None and out is not None:
        if plot is not None:
            raise StrettoError("--plot shows one policy; give --load in place of --loads")
        _store(chosen, choice, workers, read_range(loads), out, processes, as_json)
    elif load is not None:
        about.check_load(load)
        _show(chosen, choice, workers, load, as_json, plot)


def _show(chosen: Subject, choice: Choice, workers: int, load: float, as_json: bool, plot: Path | None) -> None:
    from stretto.planners.parts.task import task_of
    from stretto.planners.promise import promise_of

    deployment = chosen.deployment(workers)
    most = task_of(deployment, 0).capacity()
    if choice.is_judged:
        _show_judged(chosen, choice, workers, load, most, as_json, plot)
        return
    promise = promise_of(choice.make(), deployment, load)
    picture = _picture(deployment, promise.table)
    title = _title(chosen, choice, workers, load)
    accuracy = f"{promise.accuracy:.4f}" if chosen.has_accuracy else "not known"
    note = f"expected accuracy {accuracy}, not on time {about.at_most(promise.violation)}"
    if plot is not None:
        from stretto.report.plots import save
        from stretto.report.policy import policy_figure

        save(policy_figure(picture, title, note), plot)
    if as_json:
        print_json(_as_json(chosen, choice, deployment, load, promise.figures(), promise.table, most))
        return
    _print(chosen, deployment, picture, title)
    least, highest = choice.words
    typer.echo(f"\nexpected accuracy of answers    {least * chosen.has_accuracy}{accuracy}")
    if promise.median and chosen.has_accuracy:
        typer.echo(f"  of half of them, of 99 in 100 {least}{promise.median:.4f}, {promise.p99:.4f}")
    typer.echo(f"expected to be not on time      {highest}{about.at_most(promise.violation)}")
    _warn(deployment, load, most)
    if plot is not None:
        typer.echo(f"plot: {plot}")


def _show_judged(
    chosen: Subject, choice: Choice, workers: int, load: float, most: float, as_json: bool, plot: Path | None
) -> None:
    from stretto.cli.judged_plan import judged_plan
    from stretto.report.policy import policy_figure
    from stretto.report.verdicts import verdict_lines

    with progress_bar("judging candidates") as progress:
        judged = judged_plan(chosen, choice, workers, load, progress)
    table = judged.table()
    title = _title(chosen, choice, workers, load)
    lines = verdict_lines(judged.deployment, judged.verdict)
    if plot is not None:
        from stretto.report.plots import save

        if table is None:
            raise StrettoError(f"{judged.verdict.candidate} was judged best and follows no table; there is no picture")
        save(policy_figure(_picture(judged.deployment, table), title, lines[0]), plot)
    if as_json:
        expected = judged.figures()
        print_json(
            _as_json(chosen, choice, judged.deployment, load, expected, table, most) | {"judged": judged.as_dict()}
        )
        return
    _print(chosen, judged.deployment, None if table is None else _picture(judged.deployment, table), title)
    typer.echo("\n" + "\n".join(lines))
    _warn(judged.deployment, load, most)
    if plot is not None:
        typer.echo(f"plot: {plot}")


def _picture(deployment: Deployment, table: Table) -> Picture:
    from stretto.report.policy import Picture

    profiles = [deployment.profile(number) for number in range(len(deployment.variants))]
    return Picture.of(
        table,
        [variant.name for variant in deployment.variants],
        deployment.applications[0].ladder,
        [profile.max_batch for profile in profiles],
        deployment.applications[0].slo_ns,
    )


def _title(chosen: Subject, choice: Choice, workers: int, load: float) -> str:
    count = f"{workers} worker{'s' if workers != 1 else ''}"
    slo_ms = chosen.application.slo_ns / 1e6
    return f"{chosen.application.name}: {choice.name}, {count}, {load:,.6g} queries/s, SLO {slo_ms:g} ms"


def _print(chosen: Subject, deployment: Deployment, picture: Picture | None, title: str) -> None:
    import shutil
    import sys

    from rich.text import Text

    from stretto.report.policy import policy_legend, policy_text

    for warning in chosen.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if picture is None:
        print_tables(Text(title, "bold"))
        return
    width = min(shutil.get_terminal_size().columns, 160) if sys.stdout.isatty() else WIDTH
    slo_ns = deployment.applications[0].slo_ns
    figures = []
    for number, variant in enumerate(deployment.variants):
        profile = deployment.profile(number)
        largest = profile.largest_batch_within(slo_ns, deployment.quantile)
        latency_ms = profile.latency_ns(1, deployment.quantile) / 1e6
        accuracy = f"{variant.accuracy:.4f}" if variant.has_accuracy else "unknown"
        figures.append([accuracy, f"{latency_ms:.3g}", str(largest)])
    latency = f"l(1) {deployment.quantile.name.lower()} ms"
    legend = policy_legend(picture, figures, ["accuracy", latency, "largest batch within the SLO"])
    print_tables(Text(title, "bold"), policy_text(picture, width), legend)
    if (picture.cut()[1:] > 0).any():
        typer.echo("A number after a letter is the batch, where it is smaller than what waits.")


def _warn(deployment: Deployment, load: float, most: float) -> None:
    if load > most:
        typer.echo(
            f"warning: {len(deployment.workers)} workers answer at most {most:,.0f} queries/s in time; add workers, or"
            " see stretto capacity",
            err=True,
        )


def _as_json(
    chosen: Subject,
    choice: Choice,
    deployment: Deployment,
    load: float,
    expected: dict[str, float],
    table: Table | None,
    most: float,
) -> dict[str, Any]:
    return {
        "application": chosen.application.name,
        "kind": chosen.kind,
        "planner": choice.name,
        "options": choice.options,
        "slo_ms": chosen.application.slo_ns / 1e6,
        "workers": len(deployment.workers),
        "load": load,
        "capacity": most,
        "expected": expected if chosen.has_accuracy else {"violation": expected["violation"]},
        "variants": [
            {"name": variant.name, "accuracy": variant.accuracy if variant.has_accuracy else None}
            for variant in deployment.variants
        ],
        "table": None
        if table is None
        else {
            "slack_step_ms": table.slack_step_ns / 1e6,
            "variant": table.variant,  # [queued][slack], a place in `variants`, -1: wait
            "batch": table.batch,  # 0: all that wait
        },
        "warnings": list(chosen.warnings),
    }


def read_range(loads: str) -> tuple[float, float]:
    """LOW:HIGH in queries/s."""
    low, _, high = loads.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise StrettoError(f"--loads is {loads[:40]!r}; write it as LOW:HIGH in queries/s, say 400:4000") from None
    if not 0 < bounds[0] < bounds[1] <= about.MAX_LOAD:
        raise StrettoError(f"--loads is {loads[:40]!r}; loads rise from above 0 to at most {about.MAX_LOAD:g}")
    return bounds


def _store(
    chosen: Subject,
    choice: Choice,
    workers: int,
    bounds: tuple[float, float],
    out: Path,
    processes: int,
    as_json: bool,
) -> None:
    """The policies of a round are solved side by side; what comes out does not depend on how many at once."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from stretto.live.children import end_with_parent
    from stretto.planners.parts.library import make_library
    from stretto.planners.parts.store import save_libraries
    from stretto.planners.parts.task import task_of

    task = task_of(chosen.deployment(workers), 0)
    most = MOST_OF_CAPACITY * task.capacity()
    if bounds[1] > most:
        if bounds[0] >= most:
            raise StrettoError(f"{workers} workers answer at most {task.capacity():,.0f} queries/s; lower --loads")
        typer.echo(f"policies end at {most:,.0f} queries/s: beyond, all are the same", err=True)
        bounds = (bounds[0], most)
    planner = choice.make()
    for warning in chosen.warnings:
        typer.echo(f"warning: {warning}", err=True)
    count = processes or os.cpu_count() or 1
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), end_with_parent)
    with progress_bar("policies") as progress, pool:

        def told(done: int, needed: int) -> None:
            if progress is not None:
                progress(done / needed)

        library = make_library(task, planner.options, planner.make, *bounds, run=pool.map, progress=told)
    save_libraries(out, [library])
    policies = library.policies
    if as_json:
        print_json(
            {
                "application": chosen.application.name,
                "planner": choice.name,
                "workers": workers,
                "file": str(out),
                "policies": [
                    {
                        "load": p.load,
                        "accuracy": p.expectation.accuracy,
                        "median_accuracy": p.expectation.median,
                        "p99_accuracy": p.expectation.p99,
                        "violation": p.expectation.violation,
                    }
                    for p in policies
                ],
            }
        )
        return
    from stretto.report.tables import figures_table, whole

    rows = {
        whole(policy.load): [f"{policy.expectation.accuracy:.4f}", about.at_most(policy.expectation.violation)]
        for policy in policies
    }
    title = f"{chosen.application.name}: {choice.name}, {workers} workers, {len(policies)} policies"
    print_tables(figures_table(title, "queries/s", choice.columns, rows))
    typer.echo(f"wrote {out}")
