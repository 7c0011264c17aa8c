"""`stretto check`: a model repository, what it holds and everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Json
from stretto.cli.output import print_json, print_tables

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.problems import Problems
    from stretto.repository.repository import Repository
    from stretto.repository.variant import VariantFiles

BATCHES = (1, 8)

RepositoryReference = Annotated[
    str, typer.Argument(metavar="REPO", help="A folder, zoo or zoo:APP; see docs/repository.md.")
]
Kind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Show the profiles of this machine kind; else the one profiled last here."),
]


def check(repository: RepositoryReference, kind: Kind = None, as_json: Json = False) -> None:
    """Check a model repository: its applications, variants and profiles, and all that is wrong with them.

    \b
    Exit code 0: it can be used, perhaps with warnings. Exit code 2: it cannot.
    Examples:
      stretto check zoo
      stretto check models/
      stretto check models/fashion --json
    """
    from stretto.repository.read import inspect_repository

    contents, problems = inspect_repository(repository)
    used = contents.kind_profiled() if kind is None else contents.kind_in_use(kind)
    here = contents.kinds_here()
    for doubt in contents.doubts(used):
        problems.add(doubt)
    rows = {application.name: _rows(application, used, here) for application in contents.applications}
    if as_json:
        print_json(_as_json(contents, used, rows, problems))
    else:
        _print(contents, used, rows, problems)
    if problems.errors:
        raise typer.Exit(2)


def _rows(application: ApplicationFiles, kind: str, here: tuple[str, ...]) -> list[dict[str, Any]]:
    return [_row(application, variant, kind, here) for variant in application.variants]


def _row(application: ApplicationFiles, variant: VariantFiles, kind: str, here: tuple[str, ...]) -> dict[str, Any]:
    from stretto.core.profile import NS_PER_MS
    from stretto.repository.repository import core_variant

    profile = variant.profile_on(kind)
    latency = None if profile is None else core_variant(application, variant, [profile]).profiles[0]
    memory = variant.memory_bytes if variant.memory_bytes is not None or profile is None else profile.memory_bytes
    return {
        "name": variant.name,
        "enabled": variant.enabled,
        "backend": variant.backend,
        "accuracy": variant.accuracy if variant.has_accuracy else None,
        "accuracy_source": variant.accuracy_source,
        "stated_accuracy": variant.stated_accuracy,
        "input_shape": variant.input_shape,
        "p95_ms": {
            str(batch): latency.latency_ns(batch) / NS_PER_MS if latency and batch <= latency.max_batch else None
            for batch in BATCHES
        },
        "max_batch": None if latency is None else latency.max_batch,
        "memory_bytes": memory,
        "profile": variant.profile_state(kind, here),
        "profile_kinds": [each.kind for each in variant.profiles],
    }


def _as_json(
    repository: Repository, kind: str, rows: dict[str, list[dict[str, Any]]], problems: Problems
) -> dict[str, Any]:
    return {
        "repository": repository.reference,
        "kind": kind,
        "applications": [
            {
                "name": application.name,
                "slo_ms": application.slo_ms,
                "penalty": application.penalty.name.lower(),
                "input_shape": application.input.shape,
                "sizes": application.input.sizes,
                "encodings": application.input.encodings,
                "classes": application.classes,
                "variants": rows[application.name],
            }
            for application in repository.applications
        ],
        "problems": [
            {
                "severity": "error" if problem.is_error else "warning",
                "file": problem.file,
                "line": problem.line,
                "message": problem.message,
            }
            for problem in problems.found
        ],
        "errors": len(problems.errors),
        "warnings": len(problems.warnings),
    }


def _print(repository: Repository, kind: str, rows: dict[str, list[dict[str, Any]]], problems: Problems) -> None:
    from stretto.report.tables import figures_table, told_beside
    from stretto.repository.images import sizes_text
    from stretto.repository.tensors import shape_text

    columns = ("accuracy", *(f"l({batch}) p95 ms" for batch in BATCHES), "memory MB", "profile")
    for application in repository.applications:
        title = f"{application.name}: SLO {application.slo_ms:g} ms, input {shape_text(application.input.shape)}"
        if application.classes:
            title += f", {application.classes} classes"
        table = {
            row["name"] if row["enabled"] else f"{row['name']} (off)": [
                _accuracy(row["accuracy"], row["accuracy_source"]),
                *(_figures(row["p95_ms"][str(batch)]) for batch in BATCHES),
                _figures(None if row["memory_bytes"] is None else row["memory_bytes"] / 1e6),
                str(row["profile"]),
            ]
            for row in rows[application.name]
        }
        print_tables(figures_table(title, "variant", columns, table))
        stated = {row["name"]: (row["accuracy"], row["stated_accuracy"]) for row in rows[application.name]}
        for sentence in told_beside(stated):
            typer.echo(sentence)
        if application.input.sizes or len(application.input.encodings) > 1:
            height, width = application.input.shape[-2:]
            sizes = application.input.sizes or ((height, width),)
            as_what = ", ".join(application.input.encodings)
            typer.echo(f"{application.name} takes images of {sizes_text(sizes)} (height x width) as {as_what}")
    typer.echo(f"latency on machine kind {kind}")
    for problem in problems.found:
        typer.echo(f"{'error' if problem.is_error else 'warning'}: {problem}")
    counts = [_counted(len(problems.errors), "error"), _counted(len(problems.warnings), "warning")]
    typer.echo(", ".join(count for count in counts if count) or "no problems")


def _accuracy(value: float | None, source: str) -> str:
    from stretto.report.tables import share

    return "unknown" if value is None else share(value) + ("" if source == "measured" else f" ({source})")


def _figures(value: float | None) -> str:
    """Three figures that matter: a small model takes hundredths of a millisecond."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(count: int, what: str) -> str:
    return "" if not count else f"{count} {what}" + ("s" if count > 1 else "")
