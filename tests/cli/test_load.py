"""`stretto load` as a person runs it, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from stretto.cli.load import load, warnings
from stretto.cli.main import Commands
from stretto.client.load import LoadSpec
from stretto.client.load.arrivals import arrival_times_ns
from stretto.sim.query_log import QueryLog
from tests.api.serving import Running, repository_of
from tests.client.server import Rules, Server
from tests.repository.build import build

app = typer.Typer(cls=Commands)
app.callback()(lambda: None)
app.command()(load)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.npz"
    queries = np.random.default_rng(0).random((20, 4)).astype(np.float32)
    np.savez(file, inputs=queries, labels=queries[:, :3].argmax(axis=1))
    return file


def run(server: Server, data: Path, *arguments: object) -> Any:
    words = ["load", "rows", "--url", server.url, "--data", str(data), "--deadline-ms", "2000", *map(str, arguments)]
    return CliRunner().invoke(app, words)


def test_a_table(server: Server, data: Path) -> None:
    result = run(server, data, "--rate", 200, "--seconds", 0.3, "--variant", "fast", "--rows", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "rows: poisson, 0.3 s, seed 0, deadline 2000 ms",
        "answered on time",
        "correct and on time",
        "100.00%",
    ):
        assert text in result.stdout
    assert "answered by fast" in result.stdout and "refused" not in result.stdout


def test_json_and_a_plot(server: Server, data: Path, tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    result = run(server, data, "--kind", "burst:50:500:0.4:0.5", "--seconds", 0.4, "--json", "--plot", plot)
    summary = json.loads(result.stdout)
    assert summary["on_time_share"] == summary["correct_on_time_share"] == 1 and summary["arrivals"].startswith("burst")
    text = plot.read_text()
    assert "<svg" in text


def test_a_log_of_what_was_sent_can_be_simulated_and_learned_from(server: Server, data: Path, tmp_path: Path) -> None:
    log = tmp_path / "queries.csv"
    words = ("--rate", 300, "--seconds", 0.3, "--rows", 2, "--log", log, "--json")
    summary = json.loads(run(server, data, *words).stdout)
    rows = QueryLog.read(log).rows
    assert len(rows) == 2 * summary["requests"] and (rows["deadline_ns"] == 2_000_000_000).all()
    assert (rows["time_ns"][::2] == rows["time_ns"][1::2]).all() and rows["time_ns"][-1] < 300_000_000
    spec = LoadSpec("rows", np.zeros((1, 4), np.float32), rate=300.0, seconds=0.3)
    assert rows["time_ns"][::2].tolist() == arrival_times_ns(spec).tolist()
    assert "must end in .csv" in run(server, data, "--log", tmp_path / "queries.txt").stderr
    assert "leave them out with --network" in run(server, data, "--network", "steady", "--log", log).stderr


def test_a_trace_has_its_own_rates(server: Server, data: Path, tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("second,rate\n0,1000\n0.2,200\n0.4,1000\n")
    summary = json.loads(run(server, data, "--trace", trace, "--seconds", 0.4, "--json").stdout)
    assert summary["arrivals"] == "trace day.csv" and 160 < summary["requests"] < 320
    summary = json.loads(run(server, data, "--trace", trace, "--seconds", 0.4, "--rate", 100, "--json").stdout)
    assert 15 < summary["requests"] < 80
    assert "leave the kind" in run(server, data, "--trace", trace, "--kind", "uniform").stderr
    assert "at most" in run(server, data, "--trace", trace, "--seconds", 80_000).stderr


def test_the_zoo_s_sample_is_sent_by_default() -> None:
    with Server(Rules(application="fashion", shape=(1, 28, 28), classes=10)) as server:
        words = ["load", "fashion", "--url", server.url, "--rate", "100", "--seconds", "0.2", "--json"]
        summary = json.loads(CliRunner().invoke(app, words).stdout)
    assert summary["on_time_share"] == 1 and summary["accuracy"] is not None and summary["deadline_ms"] == 500


def test_refusals_are_shown_by_reason(server: Server, data: Path) -> None:
    server.rules.refuse = "overloaded"
    result = run(server, data, "--rate", 200, "--seconds", 0.2)
    assert "refused, overloaded" in result.stdout and "–" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rate 200"),
        (("--rate", 0), "the rate is 0"),
        (("--rate", 10, "--seconds", 1e12), "the duration"),
        (("--rate", 10, "--kind", "normal"), "are not known"),
        (("--trace", "missing.csv"), "cannot be read"),
        (("--rate", 10, "--plot", "load.txt"), "must end in"),
        (("--rate", 10, "--connections", 0), "connections"),
    ],
)
def test_errors_are_sentences(server: Server, data: Path, arguments: tuple[object, ...], message: str) -> None:
    result = run(server, data, *arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output
    assert not any(path.endswith("infer") for path in server.rules.paths)


def test_a_late_generator_warns() -> None:
    summary = {"was_interrupted": False, "lag_ms": {"p99": 4.9}, "waited_for_connection": 0, "requests": 100}
    assert warnings(summary) == []
    (found,) = warnings(summary | {"lag_ms": {"p99": 5.1}})
    assert "the generator was the bottleneck" in found
    (found,) = warnings(summary | {"lag_ms": {"p99": 5.1}, "waited_for_connection": 50})
    assert "--connections" in found
    assert "interrupted" in warnings(summary | {"was_interrupted": True})[0]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server of several image sizes."""
    repository = repository_of(tmp_path_factory.mktemp("ladder"), "fashion_resolution")
    with Running(repository, only=("px08", "px24"), planner="jellyfish") as server:
        host, port = server.address("http")
        yield f"http://{host}:{port}"


def test_frames_over_links(ladder: str, tmp_path: Path) -> None:
    plot = tmp_path / "frames.svg"
    words = ["load", "fashion_resolution", "--url", ladder, "--network", "fading", "--clients", "2", "--fps", "8"]
    words += ["--seconds", "1", "--deadline-ms", "2000"]
    result = CliRunner().invoke(app, [*words, "--json", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["frames"] == 16 == sum(summary["outcomes"].values()) and summary["slo_ms"] == 2000
    assert all(client["link"].startswith("fading from") for client in summary["clients"])
    assert "<svg" in plot.read_text()
    result = CliRunner().invoke(app, [*words, "--size", "8"])
    assert result.exit_code == 0 and "sent at 8 px" in result.stdout and "size with bandwidth" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "10"), "--rate belong to a load of requests"),
        (("--rows", "3", "--connections", "7"), "--rows and --connections belong to a load of requests"),
        (("--clients", "0"), "from 1 to 4096 clients"),
        (("--size", "9"), "the server takes frames of"),
        (("--fps", "0"), "the frame rate"),
        (("--encoding", "gif"), "no encoding 'gif'"),
    ],
)
def test_errors_with_a_network_are_sentences(ladder: str, arguments: tuple[str, ...], message: str) -> None:
    words = ["load", "fashion_resolution", "--url", ladder, "--network", "steps", "--seconds", "1", *arguments]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_what_only_frames_have_needs_a_network() -> None:
    result = CliRunner().invoke(app, ["load", "fashion", "--rate", "10", "--clients", "3", "--scale", "0.5"])
    assert result.exit_code == 2 and "--clients and --scale belong to a load of frames" in result.stderr


def test_the_sample_of_an_application_of_ones_own(tmp_path: Path) -> None:
    """Only the zoo's samples could be sent."""
    built = build(tmp_path / "models")
    np.savez(built.app / "sample.npz", inputs=np.eye(4, dtype=np.float32)[:3, None], labels=np.array([0, 1, 2]))
    with Server(Rules(shape=(1, 4))) as server:
        words = ["load", "rows", "--url", server.url, "--rate", "100", "--seconds", "0.2", "--json"]
        result = CliRunner().invoke(app, [*words, "--repository", str(built.root)])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["accuracy"] == 1
        result = CliRunner().invoke(app, [*words, "--repository", str(built.root), "--data", "some.npz"])
        assert result.exit_code == 2 and "give one of them" in result.stderr
