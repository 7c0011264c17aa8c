"""`stretto tune`: plans judged for a repository over a range of loads, here or on another machine, into a file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Json, Plot, memory_bytes
from stretto.cli.output import check_plot, check_writable, print_json, print_tables, progress_bar
from stretto.cli.plan import read_range
from stretto.cli.setting import read_setting
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment
    from stretto.live.options import ServiceOptions
    from stretto.repository.repository import Repository
    from stretto.twin.library import Library
    from stretto.twin.setting import Setting

Repo = Annotated[str, typer.Argument(metavar="REPO", help="A folder, zoo or zoo:APP; see docs/repository.md.")]
SettingFile = Annotated[
    Path | None,
    typer.Option("--setting", metavar="FILE", help="What stretto setting takes: .npz, .jsonl. Else: as profiled."),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the plans, for stretto serve --plans.")]
Workers = Annotated[int, typer.Option(metavar="N", min=0, max=1024, help="0: the setting's; else as stretto serve.")]
Worker = Annotated[
    list[str] | None,
    typer.Option(metavar="DEVICE", help="Unequal workers: cuda:0, cpu*2,kind=NAME; several times, as stretto serve."),
]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Machine kind whose profiles decide.")]
Loads = Annotated[
    str | None, typer.Option(metavar="LOW:HIGH", help="Queries/s of all applications; else all that matter.")
]
MemoryMb = Annotated[
    float | None, typer.Option("--worker-memory-mb", metavar="MB", min=1, help="Of each worker, as stretto serve.")
]
BudgetS = Annotated[
    float | None, typer.Option("--budget-s", metavar="S", min=0, help="Processor time for each load; else any.")
]
Jobs = Annotated[int, typer.Option(metavar="N", min=0, max=256, help="Loads judged at once; 0: one for each core.")]


def tune(
    repository: Repo,
    setting: SettingFile = None,
    out: Out = None,
    workers: Workers = 0,
    worker: Worker = None,
    kind: Kind = None,
    memory_mb: MemoryMb = None,
    loads: Loads = None,
    budget_s: BudgetS = None,
    jobs: Jobs = 0,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Judge which plan is best at every load, under what a server measured, and keep it for the next start.

    Takes seconds to a minute of a core for each load, and nothing of the server: it may run on another machine, which
    needs the repository with its profiles and the setting.

    \b
    Examples:
      stretto setting events.jsonl --out monday.npz
      stretto tune models --setting monday.npz --out plans.json --plot plans.png
      stretto serve models --planner judged --plans plans.json
      stretto tune zoo:fashion --workers 2 --loads 500:4000
    """
    from stretto.live.options import ServiceOptions
    from stretto.repository.read import read_repository

    check_plot(plot)
    check_writable(out, "--out", (".json",))
    if worker and (workers or kind is not None):
        raise StrettoError("--worker lists the workers with their kinds; leave --workers and --kind out")
    bounds = (None, None) if loads is None else read_range(loads)
    options = ServiceOptions(
        repository, workers, tuple(worker or ()), kind=kind, worker_memory_bytes=memory_bytes(memory_mb)
    )
    measured = None if setting is None else read_setting(setting)
    models = read_repository(repository)
    deployment, warnings = _deployment(models, options, measured)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    conditions = with_evidence(models, deployment, _as_profiled(deployment) if measured is None else measured)
    library = _judged(deployment, conditions, setting, bounds, budget_s, jobs)
    verdicts = [judgement.verdict for judgement in library.judgements]
    from stretto.report.verdicts import verdict_as_dict, verdicts_figure, verdicts_table

    names = ", ".join(application.name for application in deployment.applications)
    title = f"{names}: {_workers(library)}, {library.conditions}"
    if out is not None:
        from stretto.twin.library_file import save_library

        save_library(out, library)
    if plot is not None:
        from stretto.report.plots import save

        save(verdicts_figure(deployment, verdicts, title), plot)
    if as_json:
        print_json(
            {
                "repository": repository,
                "workers": dict(library.scope.workers),
                "conditions": library.conditions,
                "judged": [verdict_as_dict(deployment, verdict) for verdict in verdicts],
            }
        )
        return
    print_tables(verdicts_table(deployment, verdicts, title))
    for word, written in (("plans", out), ("plot", plot)):
        if written is not None:
            typer.echo(f"{word}: {written}")


def _workers(library: Library) -> str:
    return " + ".join(f"{count} × {kind}" for kind, count in library.scope.workers.items())


def _deployment(
    repository: Repository, options: ServiceOptions, setting: Setting | None
) -> tuple[Deployment, tuple[str, ...]]:
    """As a server with these options would have it; on the workers that the setting knows where none are named."""
    from stretto.core.fleet import numbered
    from stretto.core.worker import Worker as Slot
    from stretto.live.fleet import check_variants, deployment_on

    named = options.workers or options.worker or options.kind is not None
    fleet: tuple[Slot, ...] = ()
    for kind, count in () if setting is None or named else setting.present.items():
        fleet += numbered(fleet, repository.kind_in_use(kind), count, options.worker_memory_bytes)
    if fleet:
        return repository.deployment(fleet, options.quantile)
    check_variants(options.fleet(), repository)
    return deployment_on(options.fleet(), repository, options.quantile)


def _as_profiled(deployment: Deployment) -> Setting:
    from stretto.live.delays import DelayMeter
    from stretto.twin.tune import as_profiled

    return as_profiled(deployment, DelayMeter().delays)


def with_evidence(repository: Repository, deployment: Deployment, setting: Setting) -> Setting:
    """The setting with what evidence says of labelled samples, where a server would look at it and classes of queries
    were recorded. A recording holds what they were taken for, and not the samples.
    """
    from dataclasses import replace

    from stretto.planning.served import served_session

    heard = {name for name, stretch in setting.arrivals.items() if sum(stretch.class_shares) > 0}
    if setting.evidence or not heard or not served_session("judged").uses_evidence(deployment):
        return setting
    from stretto.evidence.samples import loaded_evidence, said_of_samples
    from stretto.twin.classes import labelled_of

    files = [each for each in repository.applications if each.name in heard]
    return replace(setting, evidence=labelled_of(said_of_samples(files, loaded_evidence(files))))


def _judged(
    deployment: Deployment,
    conditions: Setting,
    measured_in: Path | None,
    bounds: tuple[float | None, float | None],
    budget_s: float | None,
    jobs: int,
) -> Library:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    from stretto.live.children import end_with_parent
    from stretto.twin.tune import loads_between, shares_of, tuned

    shares = shares_of(deployment, conditions)
    rates = loads_between(deployment, shares, *bounds)
    words = "as profiled, Poisson arrivals" if measured_in is None else f"measured ({measured_in.name})"
    count = min(jobs or os.cpu_count() or 1, len(rates))
    with progress_bar(f"judging {len(rates)} loads") as progress:
        judge_all = partial(
            tuned,
            deployment,
            conditions,
            rates,
            words,
            progress=progress,
            is_measured=measured_in is not None,
            budget_s=math.inf if budget_s is None else budget_s,
        )
        if count == 1:
            return judge_all()
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), end_with_parent) as pool:
            return judge_all(run=pool.map)
