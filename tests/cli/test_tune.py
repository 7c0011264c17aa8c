"""`stretto tune` as a person runs it, and a server that takes what came of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.started import Started, started_server
from stretto.cli.tune import with_evidence
from stretto.client import Client
from stretto.core.compile_cache import user_folder
from stretto.core.profile import Quantile
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.live.fleet import deployed_workers
from stretto.live.options import ServiceOptions
from stretto.repository.read import read_repository
from stretto.twin.library_file import load_library
from stretto.twin.live import figures_of
from stretto.twin.setting import Setting
from stretto.twin.setting_file import save_setting
from stretto.twin.stretch import ArrivalStretch
from tests.repository.build import KIND, Built, build
from tests.twin.made import stretch

LIMIT_S = 240.0  # the judge has the lowest priority of all


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    file = tmp_path / "monday.npz"
    save_setting(file, Setting({"rows": stretch("bursty", 300.0)}, present={KIND: 2}))
    return file


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = run("tune", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    return str(result.stderr).rpartition("error: ")[2].strip()


def test_plans_are_judged_under_a_setting_and_written(built: Built, measured: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "plans.json", tmp_path / "plans.png"
    what = ("tune", built.root, "--setting", measured, "--loads", "300:330", "--jobs", 1)
    result = run(*what, "--out", out, "--plot", plot)
    assert result.exit_code == 0, result.output
    for words in (
        f"2 × {KIND}, measured (monday.npz)",
        "served by",
        "correct / bound",
        f"plans: {out}",
        f"plot: {plot}",
    ):
        assert words in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if "models" not in line) <= 100
    assert plot.read_bytes().startswith(b"\x89PNG")
    library = load_library(out)
    deployment, _ = read_repository(built.root).deployment(2, Quantile.MEAN)
    (judgement,) = library.judgements_for(deployment)
    assert 300 <= judgement.verdict.rates[0] <= 330 and judgement.verdict.promise.correct > 0.6
    assert judgement.figures.keys() == figures_of(Setting({"rows": stretch("bursty", 300.0)}), deployment).keys()
    again = run(*what, "--json", "--out", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == out.read_bytes(), "the same conditions, the same file"
    (told,) = json.loads(again.stdout)["judged"]
    assert told["candidate"] == str(judgement.verdict.candidate) and told["bound"] >= told["promise"]["correct"] - 0.01


def test_two_at_once_find_the_same(built: Built, tmp_path: Path) -> None:
    files = [tmp_path / f"{jobs}.json" for jobs in (1, 2)]
    for jobs, file in enumerate(files, 1):
        result = run("tune", built.root, "--workers", 1, "--loads", "200:250", "--jobs", jobs, "--out", file)
        assert result.exit_code == 0, result.output
        assert "as profiled, Poisson arrivals" in result.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(load_library(files[0]).judgements) == 2


def test_plans_for_workers_of_little_memory_are_taken_where_a_server_has_such(
    built: Built, measured: Path, tmp_path: Path
) -> None:
    """Regression: workers of a setting had all memory, and a server with less refused what was judged for it."""
    out = tmp_path / "plans.json"
    result = run(
        *("tune", built.root, "--setting", measured, "--loads", "300:330", "--jobs", 1, "--out", out),
        *("--worker-memory-mb", 1000, "--budget-s", 0),
    )
    assert result.exit_code == 0, result.output
    options = ServiceOptions(str(built.root), workers=2, worker_memory_bytes=10**9)
    repository = read_repository(built.root)
    deployment, _ = repository.deployment(deployed_workers(options.fleet(), repository), Quantile.MEAN)
    (judgement,) = load_library(out).judgements_for(deployment)
    assert judgement.verdict.tried < 5, "there was no time for more"


def test_evidence_is_known_where_a_server_would_know_it() -> None:
    """Regression: schedules by evidence were never tried under what was recorded of a server that looked at it."""
    pytest.importorskip("faiss")
    repository = read_repository("zoo")

    recorded = Setting({name: ArrivalStretch(10.0, class_shares=(0.5, 0.3)) for name in ("fashion", "mnist")})

    def known(memory: int, measured: Setting = recorded) -> Setting:
        options = ServiceOptions("zoo", workers=1, worker_memory_bytes=memory)
        deployment, _ = repository.deployment(deployed_workers(options.fleet(), repository), Quantile.MEAN)
        return with_evidence(repository, deployment, measured)

    for memory in (8_000_000, UNLIMITED_MEMORY):  # also where nothing is swapped
        swapped = known(memory)
        assert set(swapped.evidence) == {"fashion", "mnist"}, "of others no class was told"
    assert not known(8_000_000, Setting({"fashion": ArrivalStretch(10.0)})).evidence
    assert (swapped.evidence["fashion"].weights != 1).any(), "it is right as often as it was profiled to be"
    assert known(8_000_000, swapped) is swapped, "what a server knew stays"


def test_mistakes_are_sentences(built: Built, measured: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "none")
    assert "must end in .json" in refused(built.root, "--out", tmp_path / "plans.npz")
    assert "write it as LOW:HIGH" in refused(built.root, "--loads", "12")
    assert "leave --workers and --kind out" in refused(built.root, "--worker", "cpu", "--workers", 2)
    assert "cannot be read" in refused(built.root, "--setting", tmp_path / "none.npz")
    assert "has no profile for machine kind 'abacus'" in refused(built.root, "--kind", "abacus")
    other = tmp_path / "other.npz"
    save_setting(other, Setting({"else": stretch("poisson")}))
    told = refused(built.root, "--setting", other, "--kind", KIND)
    assert told.startswith("nothing came for rows in this setting, which is of else")


def test_a_server_refuses_a_file_that_is_none_and_a_planner_that_follows_none(built: Built, tmp_path: Path) -> None:
    plans = tmp_path / "plans.json"
    plans.write_text("{}")
    ports = [part for name in ("http", "grpc", "management", "management-grpc") for part in (f"--{name}-port", "-1")]
    result = run("serve", built.root, *ports[2:], "--http-port", 0, "--planner", "judged", "--plans", plans)
    assert result.exit_code == 2 and "plans.json: not a file of judged plans, or damaged" in result.stderr
    result = run("serve", built.root, "--planner", "shared_queue", "--plans", plans)
    assert result.exit_code == 2 and "follows no judged plans; leave the file out, or take judged" in result.stderr


def serve_until(server: Started, words: str) -> None:
    """Calls it, with pauses that leave time for the judge, until its log says so."""
    end = time.monotonic() + LIMIT_S
    with Client(server.url) as client:
        while not any(words in line for line in list(server.lines)):
            assert time.monotonic() < end and server.process.poll() is None, server.lines
            client.infer("mnist", np.zeros((1, 1, 28, 28), np.float32), deadline_ms=30_000)
            time.sleep(0.02)


def test_a_server_started_again_finds_what_the_first_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, events = tmp_path / "cache", tmp_path / "events.jsonl"
    cache.mkdir()
    if user_folder().is_dir():
        (cache / "compiled").symlink_to(user_folder())
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(cache))
    options = ("zoo:mnist", "--variant", "mlp", "--workers", "1", "--planner", "judged")
    with started_server(options) as server:
        serve_until(server, "stretto.live: judged for ")
    assert not any("were judged before" in line for line in server.lines)
    (learned,) = (cache / "judged").iterdir()
    judgements = load_library(learned).judgements
    assert judgements and all(judgement.figures for judgement in judgements)
    with started_server((*options, "--record", str(events))) as server:
        serve_until(server, f"plans for {len(judgements)} loads were judged before")
    made = next(line for line in events.read_text().splitlines() if line.startswith('["made"'))
    assert made.count('"type":"Verdict"') == len(judgements), "they are in the log from the first plan on"
    replayed = run("replay", events, "--json")
    assert replayed.exit_code == 0 and json.loads(replayed.stdout)["differences"] == 0
    plans = tmp_path / "plans.json"
    plans.write_text(learned.read_text().replace('"slo_ms": 25.0', '"slo_ms": 24.0'))
    with started_server((*options, "--fresh", "--plans", str(plans))) as server:
        serve_until(server, "plans.json: these plans were judged for an SLO of 24 ms of mnist, not 25 ms; judge anew")
    assert not any("were judged before" in line for line in server.lines)
