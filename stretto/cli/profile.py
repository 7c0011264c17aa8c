"""`stretto profile`: measure the variants of a repository on this machine and write the profiles beside the models."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Json, Plot
from stretto.cli.output import check_plot, part_of, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.output import Progress
    from stretto.profiling.session import ProfiledVariant, Session
    from stretto.repository.stored_evidence import StoredEvidence
    from stretto.twin.library import Library

RepositoryReference = Annotated[
    str, typer.Argument(metavar="REPO", help="A folder, zoo or zoo:APP; see docs/repository.md.")
]
VariantName = Annotated[
    list[str] | None, typer.Option("--variant", metavar="NAME", help="Only this variant; may be given several times.")
]
Batches = Annotated[
    str | None,
    typer.Option(metavar="1,2,4", help="Batch sizes; else 1, 2, 4 to 32, or those of a GPU's ladder."),
]
Threads = Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="Threads that a worker gives a model.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npz", help="Labelled inputs and labels: measure accuracy, recall and confusion too."),
]
EvidenceData = Annotated[
    Path | None,
    typer.Option("--evidence", metavar="FILE.npz", help="Labelled training data: build the application's evidence."),
]
Backend = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only variants of this backend: onnx, torch or callable.")
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")]
BudgetS = Annotated[
    float, typer.Option(metavar="S", min=0.1, max=86_400, help="At most so many seconds of runs for each variant.")
]
KindName = Annotated[str | None, typer.Option(metavar="KIND", help="Name the machine kind; else it is found out.")]
NoJudge = Annotated[
    bool, typer.Option("--no-judge", help="Leave out judging the plans to start with (at most 20 s of a core).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Measure and print; write nothing.")]
OutFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Copy the applications there first, and write into the copies.")
]
InPlace = Annotated[bool, typer.Option("--in-place", help="With the zoo: write into the source checkout.")]


def profile(
    repository: RepositoryReference,
    variant: VariantName = None,
    batches: Batches = None,
    threads: Threads = 1,
    data: Data = None,
    evidence: EvidenceData = None,
    backend: Backend = None,
    device: Device = "cpu",
    budget_s: BudgetS = 20.0,
    kind: KindName = None,
    plot: Plot = None,
    out: OutFolder = None,
    in_place: InPlace = False,
    no_judge: NoJudge = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Measure latency, memory and load time of each variant, and write them beside the models.

    Measures until p95 is tight or the time is spent, and says when other programs made the machine too noisy to trust.
    Then plans for this machine's workers are judged in simulation, so that a server has good ones from the start.
    With labelled training data (--evidence, or data in [evidence] of app.toml) it also builds the index that tells a
    query's likely class ahead; see stretto evidence.

    \b
    Examples:
      stretto profile zoo:fashion --dry-run
      stretto profile zoo:fashion --out models
      stretto profile models/fashion --variant cnn --batches 1,8,32 --plot front.png
      stretto profile models/fashion --data test.npz --json
      stretto profile models/fashion --evidence train.npz --data test.npz
    """
    from stretto.profiling.session import Request, measured_batches, open_session, points_of

    check_plot(plot)
    request = Request(measured_batches(batches, device), threads, device, budget_s, kind, data, evidence)
    session = open_session(
        repository, request, names=tuple(variant or ()), backend=backend, out=out, in_place=in_place, dry_run=dry_run
    )
    for unreadable in session.repository.unreadable:
        typer.echo(f"error: {unreadable.label} is left out: {unreadable.reason}", err=True)
    with progress_bar("profiling") as progress:
        tried = [_one(session, number, progress) for number in range(len(session.variants))]
    profiled_variants = [each for each in tried if not isinstance(each, StrettoError)]
    failed = [each for each in tried if isinstance(each, StrettoError)]
    if not profiled_variants:
        raise _all_of(failed)
    built = {application.name: session.build_evidence(application)[0].stored for application in session.with_evidence}
    if not dry_run:
        _remember(session, profiled_variants)
    judged = {} if dry_run or no_judge else _judged(session)
    if plot is not None:
        from stretto.report import plots
        from stretto.report.pareto import pareto_figure

        smallest = request.batches[0]
        names = dict.fromkeys(profiled.application for profiled in profiled_variants)
        points = {
            name: points_of([each for each in profiled_variants if each.application == name], smallest)
            for name in names
        }
        ladders = {name: session.ladder(name) for name in points}
        plots.save(pareto_figure(points, f"accuracy and latency on {session.kind}", smallest, ladders), plot)
    if as_json:
        start_plans = {name: _start_plans(plans) for name, plans in judged.items()}
        left_out = {each.name: each.reason for each in session.repository.unreadable}
        print_json(
            session.as_json(profiled_variants, built)
            | {"start_plans": start_plans, "left_out": left_out, "failed": [str(error) for error in failed]}
        )
        if failed:
            raise _all_of(failed)
        return
    _print(profiled_variants, session.kind, dry_run)
    for name, plans in judged.items():
        typer.echo(f"start plans for {name}: {_start_plans(plans)}")
    for name, stored in built.items():
        _print_evidence(name, stored, dry_run)
    if plot is not None:
        typer.echo(f"plot: {plot}")
    if failed:
        raise _all_of(failed)


def _all_of(failed: list[StrettoError]) -> StrettoError:
    return StrettoError("\n".join(str(error) for error in failed))


def _remember(session: Session, profiled_variants: list[ProfiledVariant]) -> None:
    """What was loaded and run here thousands of times need not be tried once more when it is served."""
    from stretto.live.fleet import WorkerSpec, deployment_on
    from stretto.live.generation import served
    from stretto.live.remembered import Remembered
    from stretto.repository.read import read_repository

    request, remembered = session.request, Remembered()
    fleet = (WorkerSpec(request.device, 1, request.threads, session.kind),)
    measured = {profiled.label for profiled in profiled_variants}
    for folder in dict.fromkeys(chosen.application.folder for chosen in session.variants):
        with suppress(StrettoError):  # what cannot be served has nothing to be remembered
            repository = read_repository(folder)
            deployment, _ = deployment_on(fleet, repository)
            files = {each.name: each for each in repository.applications}
            for spec in served(deployment, files, fleet).specs:
                if spec.key.partition("@")[0] in measured:
                    remembered.add(spec)


def _judged(session: Session) -> dict[str, Library | StrettoError]:
    """Start plans of the applications that were measured."""
    from stretto.cli.start_plans import judge_start_plans

    folders = list(dict.fromkeys(chosen.application.folder for chosen in session.variants))
    with progress_bar("judging plans to start with") as progress:
        return judge_start_plans(folders, session.kind, session.request.device, progress)


def _start_plans(judged: Library | StrettoError) -> str:
    if isinstance(judged, StrettoError):
        return f"none, {judged}"
    loads = [sum(judgement.verdict.rates) for judgement in judged.judgements]
    count = sum(judged.scope.workers.values())
    return f"judged at {len(loads)} loads, {loads[0]:,.0f} to {loads[-1]:,.0f} queries/s, on {count} worker(s)"


def _one(session: Session, number: int, progress: Progress | None) -> ProfiledVariant | StrettoError:
    """Writes each profile as soon as it is there, so that an interrupted command keeps what it has. What is wrong with
    one variant is told at the end, when the others are measured.
    """
    try:
        return session.measure(number, part_of(progress, number, len(session.variants)))
    except StrettoError as error:
        return StrettoError(f"{session.variants[number].label}: {error}")


def _print(profiled_variants: list[ProfiledVariant], kind: str, dry_run: bool) -> None:
    from stretto.profiling.pareto import pareto_front
    from stretto.profiling.session import points_of
    from stretto.report.tables import figures_table, told_beside

    by_application: dict[str, list[ProfiledVariant]] = {}
    for profiled in profiled_variants:
        by_application.setdefault(profiled.application, []).append(profiled)
    for application, variants in by_application.items():
        variants.sort(key=lambda variant: variant.p95_ms(1))
        sizes = sorted(
            {size for variant in variants for size in (min(variant.stored.batches), max(variant.stored.batches))}
        )
        ends = sizes[:1] if len(sizes) == 1 else [sizes[0], sizes[-1]]
        columns = ["accuracy", *(f"l({size}) ms" for size in ends), "α ms", "β ms", "MB", "load"]
        rows = {
            variant.name + ("*" if variant.stored.noisy else ""): [
                _accuracy(variant),
                *(_quantiles(variant, size) for size in ends),
                _figures(variant.stored.alpha_ms),
                _figures(variant.stored.beta_ms),
                _figures((variant.stored.memory_bytes + variant.stored.dynamic_memory_bytes) / 1e6),
                _figures(variant.stored.load_ms),
            ]
            for variant in variants
        }
        title = f"{application} on {kind}: l(b) as p50/p95/p99"
        print_tables(figures_table(title, "variant", columns, rows))
        for source in sorted({variant.accuracy_source for variant in variants} - {"measured"}):
            remedy = ", for the model has changed or was never measured; give --data FILE.npz" * (source == "unknown")
            typer.echo(f"† accuracy not measured here: {source}{remedy}")
        for sentence in told_beside({variant.name: (variant.accuracy, variant.stated) for variant in variants}):
            typer.echo(sentence)
        points = points_of(variants, ends[0])
        if len(points) > 1:
            front = pareto_front(points)
            beaten = [name for name in points if name not in front]
            rest = f"; beaten: {', '.join(beaten)}" if beaten else "; no variant is beaten"
            typer.echo(f"Pareto front: {', '.join(front)}{rest}")
    noisy = [variant for variant in profiled_variants if variant.stored.noisy]
    if noisy:
        names = ", ".join(variant.label for variant in noisy)
        note = noisy[0].stored.note or "the estimate is not sure"
        explanation = note if len(noisy) == 1 else f"{note} ({noisy[0].label}; the others alike)"
        typer.echo(f"warning: * too noisy to trust: {names}: {explanation}; profile again when it is quiet", err=True)
    written = sum(variant.written is not None for variant in profiled_variants)
    typer.echo("nothing written (--dry-run)" if dry_run else f"wrote {written} profile{'s' if written != 1 else ''}")


def _print_evidence(name: str, stored: StoredEvidence, dry_run: bool) -> None:
    from stretto.report.tables import share

    measured = stored.at(stored.k)
    assert measured is not None
    typer.echo(
        f"evidence for {name}: {stored.vectors:,} vectors of {stored.dimensions}, index {stored.index}, "
        f"k = {stored.k}, its own accuracy {share(measured.accuracy)}; {'not written' if dry_run else 'written'}"
    )


def _accuracy(variant: ProfiledVariant) -> str:
    from stretto.report.tables import share

    value = "unknown" if variant.accuracy is None else share(variant.accuracy)
    return value + ("" if variant.accuracy_source == "measured" else "†")


def _quantiles(variant: ProfiledVariant, size: int) -> str:
    point = variant.stored.batches.get(size)
    return "–" if point is None else "/".join(_figures(value) for value in (point.p50, point.p95, point.p99))


def _figures(value: float) -> str:
    """Three figures that matter, two of what is small: a small model takes hundredths of a millisecond."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"
