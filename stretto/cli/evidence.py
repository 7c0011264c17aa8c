"""`stretto evidence`: how well an application knows a query's class, and so its variants' accuracy, ahead of time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Json, Plot
from stretto.cli.output import check_plot, print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.evidence.error import Errors
    from stretto.evidence.model import Evidence
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.sample import Sample

TIMED_QUERIES = 200
FEWEST_QUERIES = 4
SHOWN_KS = (1, 5)  # those of figure 7

RepositoryReference = Annotated[
    str, typer.Argument(metavar="REPO", help="A folder, zoo or zoo:APP; see docs/repository.md.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npz", help="Labelled queries that the evidence was not built from; else the sample."),
]
Score = Annotated[str, typer.Option(metavar="NAME", help="What is estimated: accuracy, f1 or quadratic.")]
Keep = Annotated[bool, typer.Option("--keep", help="Write the picked k into the stored evidence.")]


@dataclass(frozen=True)
class Report:
    """Of one application. `picked_k` was chosen on one half of the queries, `errors` are on the other half."""

    application: str
    k: int
    picked_k: int
    profiled_accuracy: float | None  # None: it was measured with another prior
    errors: Errors
    query_ms: float
    variants: tuple[str, ...]

    @property
    def profiled_error(self) -> float:
        assert self.errors.profiled is not None
        return self.errors.profiled


def evidence(
    repository: RepositoryReference,
    data: Data = None,
    score: Score = "accuracy",
    keep: Keep = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Report how far estimated accuracy is from the truth, with and without evidence, and pick k by validation.

    The truth for a query is each variant's recall of the query's true class. Profiled accuracy is the same for all
    queries; evidence (the labels of the k nearest training queries, or a variant's decision) tells them apart. Half of
    the queries pick k, the other half give the figures.

    \b
    Examples:
      stretto evidence zoo
      stretto evidence zoo:fashion --score f1 --plot errors.png
      stretto evidence models/fashion --data test.npz --keep
    """
    from stretto.repository.read import ZOO, read_repository

    check_plot(plot)
    contents = read_repository(repository)
    if data is not None and len(contents.applications) > 1:
        raise StrettoError("--data holds queries of one application; name that application's folder, or zoo:APP")
    if keep and repository.partition(":")[0] == ZOO:
        raise StrettoError("the zoo is a part of Stretto itself; --keep is for a repository of your own")
    reports = [_report(application, data, score) for application in contents.applications]
    if keep:
        for application, report in zip(contents.applications, reports, strict=True):
            _keep(application, report.picked_k, data)
    if plot is not None:
        from stretto.report import plots
        from stretto.report.evidence import error_figure

        plots.save(
            error_figure(
                {app_report.application: _bars(app_report) for app_report in reports}, f"error of estimated {score}"
            ),
            plot,
        )
    if as_json:
        print_json(
            {
                "repository": contents.reference,
                "score": score,
                "applications": [_plain(app_report) for app_report in reports],
            }
        )
        return
    for report in reports:
        _print(report, score)
    if keep:
        typer.echo(f"kept k: {', '.join(f'{app_report.application} {app_report.picked_k}' for app_report in reports)}")
    if plot is not None:
        typer.echo(f"plot: {plot}")


def _report(application: ApplicationFiles, data: Path | None, score: str) -> Report:
    from stretto.evidence.build import KS
    from stretto.evidence.error import halves, measure_errors
    from stretto.evidence.load import open_evidence
    from stretto.evidence.scores import NEEDS, score_matrix

    names, scores, overall = score_matrix(application, score)
    if not names:
        raise StrettoError(
            f"no variant of {application.name} has {NEEDS[score]} in metrics.json; measure it with: "
            f"stretto profile {application.label} --data FILE.npz"
        )
    try:
        opened = open_evidence(application)
    except StrettoError as error:
        raise StrettoError(f"{application.name}: {error}") from None
    sample = _sample(application, data)
    if len(sample) < FEWEST_QUERIES:
        raise StrettoError(f"{len(sample)} labelled queries tell nothing; give some more with --data FILE.npz")
    stored = application.stored_evidence
    is_stored = stored is not None and application.evidence_settings.model == "neighbours"
    ks = tuple(trial.k for trial in stored.tried) if stored is not None and is_stored else KS
    ks = tuple(sorted({*ks, opened.k}))
    validation, rest = halves(sample)
    picked = measure_errors(opened.witness, validation, ks, opened.alpha, scores, overall).best_k
    errors = measure_errors(opened.witness, rest, ks, opened.alpha, scores, overall)
    return Report(application.name, opened.k, picked, opened.accuracy, errors, _query_ms(opened, sample.inputs), names)


def _sample(application: ApplicationFiles, data: Path | None) -> Sample:
    if data is None:
        return application.sample()
    from stretto.profiling.evidence import labelled_file, read_named

    return read_named(application, labelled_file(application, data)).sample


def _query_ms(opened: Evidence, inputs: Any) -> float:
    """Processor time of one query on its own, the mean over some."""
    count = min(TIMED_QUERIES, len(inputs))
    opened.posterior(inputs[:1])
    started = time.process_time()
    for number in range(count):
        opened.posterior(inputs[number : number + 1])
    return (time.process_time() - started) / count * 1000


def _keep(application: ApplicationFiles, k: int, data: Path | None) -> None:
    """Also measures again where the prior changed: how often evidence is right was known with the old one."""
    from stretto.evidence.build import measured_again, with_k
    from stretto.evidence.load import open_evidence
    from stretto.repository.stored_evidence import write_description

    stored = application.stored_evidence
    settings = application.evidence_settings
    if stored is None or settings.model == "variant" or (settings.k is not None and not application.has_other_prior):
        raise StrettoError(f"{application.label}: k is what [evidence] in app.toml says; write k = {k} there")
    if application.has_other_prior:
        stored = measured_again(application, open_evidence(application), _sample(application, data))
    write_description(application.folder, stored if settings.k is not None else with_k(stored, k))


def _bars(report: Report) -> dict[str, float]:
    """Figure 7, and the k that was picked."""
    ks = [k for k in SHOWN_KS if k in report.errors.by_k]
    bars = {"profiled": report.profiled_error, **{f"k = {k}": report.errors.by_k[k].error for k in ks}}
    bars[f"k = {report.picked_k}, picked"] = report.errors.by_k[report.picked_k].error
    return bars


def _plain(report: Report) -> dict[str, Any]:
    return {
        "application": report.application,
        "k": report.k,
        "picked_k": report.picked_k,
        "evidence_accuracy": report.profiled_accuracy,
        "queries": report.errors.queries,
        "query_ms": report.query_ms,
        "variants": report.variants,
        "profiled_error": report.profiled_error,
        "by_k": {str(k): asdict(at_k) for k, at_k in report.errors.by_k.items()},
    }


def _print(report: Report, score: str) -> None:
    from stretto.report.tables import figures_table, share

    rows = {"profiled": [f"{report.profiled_error:.4f}", "–"]}
    for k, at_k in report.errors.by_k.items():
        marks = [word for word, other in (("in force", report.k), ("picked", report.picked_k)) if other == k]
        rows[f"k = {k}" + (f" ({', '.join(marks)})" if marks else "")] = [f"{at_k.error:.4f}", share(at_k.accuracy)]
    title = f"{report.application}: error of estimated {score} over {len(report.variants)} variants"
    print_tables(figures_table(title, "estimate", ["error", "its own answers right"], rows))
    typer.echo(
        f"{report.errors.queries} queries; {report.query_ms:.3f} ms of processor time a query; "
        "accuracy of the evidence "
        + (
            "unknown with this prior; measure it with --keep"
            if report.profiled_accuracy is None
            else f"as profiled {share(report.profiled_accuracy)}"
        )
    )
