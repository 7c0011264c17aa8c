"""`stretto infer` as a person runs it, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from stretto.cli.infer import infer
from stretto.cli.main import Commands
from tests.client.server import Rules, Server
from tests.repository.build import Built, build

app = typer.Typer(cls=Commands)
app.callback()(lambda: None)
app.command()(infer)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def run(server: Server, *arguments: object) -> Any:
    return CliRunner().invoke(app, ["infer", *map(str, arguments), "--url", server.url])


@pytest.fixture
def bee(tmp_path: Path) -> Path:
    file = tmp_path / "bee.npy"
    np.save(file, np.array([0.25, 0.5, 0.125, 0]))
    return file


def test_one_answer(server: Server, bee: Path) -> None:
    result = run(server, "rows", bee, "--deadline-ms", 80, "--variant", "fast", "--top", 2, "--min-accuracy", 0.1)
    assert result.exit_code == 0, result.output
    for text in ("bee", "0.5000", "ant", "fast answered on time", "90.00%", "waited 1.50 ms, ran 2.50 ms", "40.00 ms"):
        assert text in result.stdout
    assert "cat" not in result.stdout
    assert server.rules.last["parameters"]["deadline_ms"] == 80 and server.rules.paths[-1].endswith("/fast/infer")


def test_json_and_numbers(server: Server, bee: Path) -> None:
    data = json.loads(run(server, "rows", bee, "--json").stdout)
    (answer,) = data["answers"]
    assert answer["classes"][0][0] == {"label": "bee", "index": 1, "score": 0.5} and len(answer["classes"][0]) == 3
    assert answer["variant"] == "good" and answer["total_ms"] > 0
    data = json.loads(run(server, "rows", bee, "--json", "--top", 0).stdout)
    assert data["answers"][0]["outputs"] == {"probabilities": [[0.25, 0.5, 0.125]]}
    assert "probabilities (1, 3)" in run(server, "rows", bee, "--top", 0).stdout


def test_several_queries_and_several_times(server: Server, tmp_path: Path) -> None:
    np.savez(tmp_path / "three.npz", inputs=np.eye(4)[:3], labels=np.arange(3))
    result = run(server, "rows", tmp_path / "three.npz", "--top", 1)
    assert all(label in result.stdout for label in ("ant 1.0000", "bee 1.0000", "cat 1.0000"))
    np.savez(tmp_path / "named.npz", x=np.eye(4)[:1])
    result = run(server, "rows", tmp_path / "named.npz", "--count", 3)
    assert result.exit_code == 0 and "total p50 / p95 / p99" in result.stdout and result.stdout.count(" ant ") == 3


def test_a_query_of_the_zoo() -> None:
    labels = tuple(f"kind {number}" for number in range(10))
    with Server(Rules(application="fashion", shape=(1, 28, 28), classes=10, labels=labels)) as server:
        assert "truth: " in run(server, "fashion", "sample:3").stdout
        assert run(server, "fashion", "sample").exit_code == 0
        for wrong in ("sample:x", "sample:99999"):
            result = run(server, "fashion", wrong)
            assert result.exit_code == 2 and "is no query of the sample" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rows", "missing.npy"), "no such file"),
        (("rows", "sample"), "the zoo has no application 'rows'"),
        (("other", "BEE"), "it is not_found"),
        (("rows", "BEE", "--deadline-ms", 0), "deadline_ms"),
    ],
)
def test_errors_are_sentences(server: Server, bee: Path, arguments: tuple[object, ...], message: str) -> None:
    result = run(server, *(bee if argument == "BEE" else argument for argument in arguments))
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_refusals_and_hostile_labels(server: Server, bee: Path) -> None:
    server.rules.labels = ("a", "[red]\x1b[2J", "c")
    assert "\x1b[2J" not in run(server, "rows", bee).stdout
    server.rules.refuse = "overloaded"
    result = run(server, "rows", bee)
    assert result.exit_code == 2 and result.stderr == "error: it is overloaded\n"


@pytest.fixture
def own(tmp_path: Path) -> Built:
    """An application of a user's own, with a sample."""
    built = build(tmp_path / "models")
    np.savez(built.app / "sample.npz", inputs=np.eye(4, dtype=np.float32)[:3, None], labels=np.array([0, 1, 2]))
    return built


def test_a_query_of_an_application_of_ones_own(own: Built) -> None:
    """Only the zoo's samples could be sent."""
    with Server(Rules(shape=(1, 4), labels=("left", "middle", "right"))) as server:
        for repository in (own.root, own.app):
            result = run(server, "rows", "sample:1", "--repository", repository)
            assert result.exit_code == 0 and "truth: middle" in result.stdout, result.output
        result = run(server, "other", "sample", "--repository", own.root)
        assert result.exit_code == 2 and "has no application 'other'" in result.stderr
        result = run(server, "rows", "sample")
        assert result.exit_code == 2 and "--repository FOLDER" in result.stderr
        (own.app / "sample.npz").unlink()
        result = run(server, "rows", "sample", "--repository", own.root)
        assert result.exit_code == 2 and "has no sample" in result.stderr


def test_a_version_is_only_ever_that_of_stretto(server: Server, bee: Path) -> None:
    """--version named a variant here, and printed a version elsewhere."""
    result = run(server, "rows", bee, "--version", "fast")
    assert result.exit_code == 2 and "No such option: --version" in result.stderr
