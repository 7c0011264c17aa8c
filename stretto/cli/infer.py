"""`stretto infer`: ask a running server one question, or the same one several times, and show what it says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Json
from stretto.cli.output import print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.client import Answer, Client

MAX_SHOWN = 40  # queries or answers in a table
DEFAULT_TOP = 3

ApplicationName = Annotated[str, typer.Argument(metavar="APP", help="The application to ask.")]
Input = Annotated[
    str,
    typer.Argument(metavar="INPUT", help="A .npy or .npz file, or sample, sample:3 …: a query of APP's sample."),
]
RepositoryReference = Annotated[
    str | None,
    typer.Option("--repository", metavar="REPO", help="Where APP and its sample are, as a folder; else the zoo."),
]
Url = Annotated[str, typer.Option(metavar="URL", help="Where the server is.")]
DeadlineMs = Annotated[
    float | None, typer.Option(metavar="MS", help="The answer is wanted by then; else the application's SLO holds.")
]
VariantName = Annotated[str, typer.Option("--variant", metavar="NAME", help="Only this variant may answer.")]
MinAccuracy = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Only variants at least this accurate may answer.")
]
Top = Annotated[
    int | None, typer.Option(metavar="N", min=0, max=1000, help="Show the N best classes (3); 0: the numbers.")
]
Count = Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Ask N times, one after the other.")]
Token = Annotated[str | None, typer.Option(metavar="TOKEN", envvar="STRETTO_TOKEN", help="The server's bearer token.")]
CaFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificates to trust, with an https:// URL.")]


def infer(
    application: ApplicationName,
    query: Input,
    url: Url = "http://127.0.0.1:8080",
    repository: RepositoryReference = None,
    deadline_ms: DeadlineMs = None,
    variant: VariantName = "",
    min_accuracy: MinAccuracy = None,
    top: Top = None,
    count: Count = 1,
    token: Token = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Ask a running server, and show the answer.

    \b
    Examples:
      stretto infer fashion sample
      stretto infer fashion sample:3 --deadline-ms 20
      stretto infer fashion image.npy --top 5 --json
      stretto infer heart sample:3 --repository models
    """
    from stretto.client import Client

    inputs, truth = _inputs(application, query, repository)
    answers: list[tuple[Answer, float]] = []
    with Client(url, token=token, ca_file=ca_file) as client:
        classes = _classes(client, application, top)
        for _ in range(count):
            begin_ns = time.perf_counter_ns()
            answer = client.infer(
                application,
                inputs,
                deadline_ms=deadline_ms,
                version=variant,
                min_accuracy=min_accuracy,
                classification=classes,
            )
            answers.append((answer, (time.perf_counter_ns() - begin_ns) / 1e6))
    if as_json:
        print_json(
            {
                "application": application,
                "truth": truth,
                "answers": [_as_json(*timed_answer) for timed_answer in answers],
            }
        )
    elif count == 1:
        _print_one(application, *answers[0], truth)
    else:
        _print_many(application, answers)


def _inputs(application: str, query: str, repository: str | None) -> tuple[Any, str | None]:
    """What to send, and the true class where it is known."""
    from stretto.cli.queries import read_arrays, sampled_application

    word, colon, place = query.partition(":")
    if word == "sample":
        files = sampled_application(application, repository)
        sample = files.sample()
        number = 0 if not colon else int(place) if place.isdigit() else len(sample)
        if number >= len(sample):
            raise StrettoError(f"{query[:40]!r} is no query of the sample; use sample:0 to sample:{len(sample) - 1}")
        label = int(sample.labels[number])
        return sample.inputs[number], files.labels[label] if label < len(files.labels) else str(label)
    if repository is not None:
        raise StrettoError("--repository says whose sample is meant; give sample, or leave it out beside a file")
    arrays = read_arrays(Path(query))
    if "inputs" in arrays:
        return arrays["inputs"], None
    arrays.pop("labels", None)
    return (next(iter(arrays.values())) if len(arrays) == 1 else arrays), None


def _classes(client: Client, application: str, top: int | None) -> int:
    """How many classes to ask for: none where an answer is no list of scores."""
    if top is not None:
        return top
    outputs = client.metadata(application).get("outputs") or [{}]
    shape = outputs[0].get("shape") or []
    classes = shape[-1] if len(shape) == 2 and isinstance(shape[-1], int) else 0
    return min(DEFAULT_TOP, classes) if classes > 1 else 0


def _best(answer: Answer) -> list[list[dict[str, Any]]] | None:
    """The classes of each query from `score:index:label`; None where the answer is numbers."""
    output = next(iter(answer.outputs.values()))
    if output.dtype != object:
        return None
    classes = []
    for row in output.reshape(len(output), -1).tolist():
        parts = [(*text.decode(errors="replace").split(":", 2), "", "")[:3] for text in row]
        classes.append([{"score": score, "index": index, "label": label or index} for score, index, label in parts])
    return classes


def _as_json(answer: Answer, total_ms: float) -> dict[str, Any]:
    best = _best(answer)
    details: dict[str, Any] = {"total_ms": total_ms, **answer.parameters}
    if best is not None:
        classes = [
            [
                {**scored_class, "score": float(scored_class["score"]), "index": int(scored_class["index"])}
                for scored_class in row
            ]
            for row in best
        ]
        return {**details, "classes": classes}
    return {**details, "outputs": answer.outputs}


def _print_one(application: str, answer: Answer, total_ms: float, truth: str | None) -> None:
    import numpy as np

    from stretto.report.tables import figures_table, milliseconds, share

    best = _best(answer)
    if best is None:
        for name, array in answer.outputs.items():
            typer.echo(f"{name} {array.shape}:\n{np.array2string(array, precision=4, threshold=200)}")
    elif len(best) == 1:
        rows = {shown(scored_class["label"]): [_score(scored_class["score"])] for scored_class in best[0]}
        print_tables(figures_table(application, "class", ["score"], rows))
    else:
        rows = {
            str(number): [f"{shown(scored_class['label'])} {_score(scored_class['score'])}" for scored_class in row]
            for number, row in enumerate(best[:MAX_SHOWN])
        }
        print_tables(figures_table(application, "query", [f"{place + 1}." for place in range(len(best[0]))], rows))
        if len(best) > MAX_SHOWN:
            typer.echo(f"… and {len(best) - MAX_SHOWN} more; --json shows all")
    if truth is not None:
        typer.echo(f"truth: {truth}")
    typer.echo(
        f"{shown(answer.variant)} answered {answer.outcome.replace('_', ' ')} in {milliseconds(total_ms)} ms, "
        f"its expected accuracy is {share(answer.expected_accuracy) if answer.expected_accuracy >= 0 else 'not known'}"
    )
    typer.echo(
        f"waited {milliseconds(answer.queue_ms)} ms, ran {milliseconds(answer.run_ms)} ms in a batch of "
        f"{answer.batch_size}, {milliseconds(abs(answer.slack_ms))} ms {'after' if answer.slack_ms < 0 else 'before'} "
        "its deadline"
    )


def _print_many(application: str, answers: list[tuple[Answer, float]]) -> None:
    import numpy as np

    from stretto.report.tables import figures_table, milliseconds

    columns = ["best class", "variant", "outcome", "total ms", "waited ms", "ran ms", "batch"]
    rows = {}
    for number, (answer, total_ms) in enumerate(answers[:MAX_SHOWN]):
        best = _best(answer)
        first = shown(best[0][0]["label"]) if best and best[0] else "–"
        times = [milliseconds(value) for value in (total_ms, answer.queue_ms, answer.run_ms)]
        cells = [first, shown(answer.variant), answer.outcome.replace("_", " "), *times, str(answer.batch_size)]
        rows[str(number + 1)] = cells
    print_tables(figures_table(application, "answer", columns, rows))
    if len(answers) > MAX_SHOWN:
        typer.echo(f"… and {len(answers) - MAX_SHOWN} more; --json shows all")
    p50, p95, p99 = np.percentile([total_ms for _, total_ms in answers], (50, 95, 99))
    typer.echo(f"total p50 / p95 / p99: {milliseconds(p50)} / {milliseconds(p95)} / {milliseconds(p99)} ms")


def _score(text: str) -> str:
    try:
        return f"{float(text):.4f}"
    except ValueError:
        return "–"


def shown(text: str) -> str:
    """Foreign text in a table: no markup, nothing that steers a terminal."""
    from rich.markup import escape

    from stretto.client.errors import printable

    return escape(printable(text))[:60]
