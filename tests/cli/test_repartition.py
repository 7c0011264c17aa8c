"""`stretto repartition` over real processes: an application changes its scheduler under load, and nobody notices."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.repartition import Limits, asked_between, computed, in_force
from stretto.client import Client, StrettoClientError
from stretto.config.partition import read_partition
from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.partition import Partition, partition_document, partition_text
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from tests.cli.test_roles import started, until
from tests.live.cluster.joined import ENVIRONMENT, free_endpoint
from tests.live.test_service import ROWS
from tests.repository.build import KIND, build

NAMES = ("rows", "second", "third")
FIRST = Partition({"rows": 0, "second": 0, "third": 1}, 2)
TOGETHER = replace(FIRST, homes={"rows": 0, "second": 1, "third": 1})


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["repartition", *(str(argument) for argument in arguments)])


class Running:
    """Two sub-clusters of one worker each, behind one front end."""

    def __init__(self, folder: Path):
        self.root, self.files = folder / "models", [folder / f"parts{number}.json" for number in (0, 1)]
        build(self.root)
        for name in NAMES[1:]:
            shutil.copytree(self.root / "rows", self.root / name)
        for file in self.files:
            file.write_text(partition_text(FIRST))
        self.endpoints = [free_endpoint() for _ in self.files]
        self.managed = [free_endpoint().replace("tcp", "http") for _ in self.files]
        self.url = free_endpoint().replace("tcp", "http")

    def schedulers(self) -> list[str]:
        return [part for url in self.managed for part in ("--scheduler", url)]

    def states(self) -> list[dict[str, Any]]:
        found = []
        for url in self.managed:
            with Client(url) as client:
                found.append(client.partition())
        return found

    def submitted(self, name: str) -> list[int]:
        return [int(state["submitted"].get(name, 0)) for state in self.states()]

    def is_settled(self, version: int) -> bool:
        return all(state["is_settled"] and state["version"] >= version for state in self.states())

    @contextlib.contextmanager
    def __call__(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        commands = []
        for number, (endpoint, managed, file) in enumerate(zip(self.endpoints, self.managed, self.files, strict=True)):
            share = ["--partition", str(file), "--sub-cluster", str(number)]
            ports = ["--management-port", managed.rpartition(":")[2], "--management-grpc-port", "-1"]
            commands.append(["scheduler", str(self.root), "--bind", endpoint, "--kind", KIND, *share, *ports])
            commands.append(["worker", "--scheduler", endpoint, "--kind", KIND])
        ports = ["--http-port", self.url.rpartition(":")[2], "--grpc-port", "-1"]
        commands.append(["front-end", str(self.root), "--scheduler", ",".join(self.endpoints), *ports])

        def is_ready() -> bool:
            with contextlib.suppress(StrettoClientError), Client(self.url) as client:
                return all(client.ready(name) for name in NAMES)
            return False

        with started(*commands) as processes:
            until(is_ready)
            yield processes


class Asking:
    """Threads that ask for one application, and note every answer, until it is over."""

    def __init__(self, url: str, name: str):
        self._url, self._name = url, name
        self._is_over = threading.Event()
        self.answered: list[Any] = []
        self.problems: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]

    def _ask(self) -> None:
        with Client(self._url) as client:
            while not self._is_over.is_set():
                try:
                    self.answered.append(client.infer(self._name, ROWS[:1], deadline_ms=20_000).output)
                except StrettoError as error:
                    self.problems.append(repr(error))

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        self.more(6)
        return self

    def more(self, count: int) -> None:
        wanted = len(self.answered) + count
        until(lambda: len(self.answered) >= wanted)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def asked_while_it_moves(running: Running, file: Path) -> tuple[Asking, list[int]]:
    """Queries for `second` before, while and after it goes from 0 to 1, and how many of them each scheduler counted.

    Links of a machine that is far too busy are lost by silence, move or no move; then it is done again.
    """
    for _ in range(5):
        before, version = running.submitted("second"), in_force(running.states()).version
        with Asking(running.url, "second") as asking:
            file.write_text(partition_text(TOGETHER))
            result = run(file, *running.schedulers(), "--json")
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout) == {"version": version + 1, "moved": {"second": {"from": 0, "to": 1}}}
            states = running.states()
            assert [state["is_settled"] for state in states] == [True, True]
            assert [set(state["serves"]) for state in states] == [{"rows"}, {"second", "third"}]
            asking.more(6)
        if not any("cannot be reached" in problem for problem in asking.problems):
            counted = [now - was for was, now in zip(before, running.submitted("second"), strict=True)]
            return asking, counted
        file.write_text(partition_text(FIRST))
        assert run(file, *running.schedulers()).exit_code == 0
    raise AssertionError("this machine loses links all the time")


def test_an_application_moves_between_sub_clusters_under_load(tmp_path: Path) -> None:
    running = Running(tmp_path)
    file = tmp_path / "wanted.json"
    with running() as processes:
        asking, counted = asked_while_it_moves(running, file)
        assert not asking.problems
        with Client(running.url) as client:
            expected = client.infer("third", ROWS[:1]).output  # the same model
        assert all(np.allclose(answer, expected, rtol=1e-5) for answer in asking.answered)
        assert sum(counted) == len(asking.answered) and min(counted) > 0, "each query was counted once"
        with Client(running.url) as client:
            told = client.statistics("second")["model_stats"]
        assert len({each["version"] for each in told}) == len(told), "each variant is told of once"
        assert sum(each["inference_count"] for each in told) >= len(asking.answered)
        for each in told:
            assert sum(b["batch_size"] * b["compute_infer"]["count"] for b in each["batch_stats"]) == sum(
                each["inference_stats"][what]["count"] for what in ("success", "fail")
            )
        version = in_force(running.states()).version
        for url in running.managed:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
                lines = reply.read().decode().splitlines()
            assert {f"stretto_partition_version {version}.0", "stretto_applications_leaving 0.0"} <= set(lines)
        for written in running.files:
            assert read_partition(written) == replace(TOGETHER, version=version)

        # By measured rates.
        idle = run(running.root, *running.schedulers(), "--measure-s", "0.2", "--json")
        assert json.loads(idle.stdout) == {"version": version, "moved": {}}, "without a load nothing moves"
        with Asking(running.url, "second"), Asking(running.url, "third"):
            tried = run(running.root, *running.schedulers(), "--measure-s", "1", "--dry-run", "--json")
            assert json.loads(tried.stdout)["version"] == version + 1, "both are in one, and the other is idle"
            assert running.states()[0]["version"] == version, "nothing was changed"
            follow = ["repartition", str(running.root), *running.schedulers(), "--measure-s", "1", "--follow"]
            with subprocess.Popen([sys.executable, "-m", "stretto", *follow], env=ENVIRONMENT) as following:
                until(lambda: running.is_settled(version + 1))
                following.terminate()
            homes = in_force(running.states()).homes
            assert homes["second"] != homes["third"] and homes["rows"] == 0, "one of them has moved"
        # A file that is read anew, at SIGHUP, is another way to give it.
        for written, scheduler in zip(running.files, processes[:3:2], strict=True):
            written.write_text(partition_text(replace(TOGETHER, version=99)))
            scheduler.send_signal(signal.SIGHUP)
        until(lambda: running.is_settled(99))
        # What one of them cannot take, nobody takes.
        shutil.rmtree(running.root / "rows" / "variants")
        file.write_text(partition_text(replace(TOGETHER, homes={**TOGETHER.homes, "rows": 1, "third": 0})))
        refused = run(file, *running.schedulers())
        assert refused.exit_code == 2 and "everything stays as it was" in refused.stderr, refused.output
        assert in_force(running.states()).homes == TOGETHER.homes


@pytest.mark.parametrize(
    ("numbers", "told"), [((0, 0), "number 0 was named 2 times"), ((0,), "number 1 was named 0 times")]
)
def test_every_sub_cluster_is_named_once(numbers: tuple[int, ...], told: str) -> None:
    states = [partition_document(FIRST) | {"sub_cluster": number, "parts": 1} for number in numbers]
    with pytest.raises(StrettoError, match=told):
        in_force(states)
    with pytest.raises(StrettoError, match="another form"):
        in_force([{}])
    with pytest.raises(StrettoError, match="start all alike"):
        in_force([states[0], partition_document(FIRST) | {"cluster": 0, "parts": 1, "version": 0}])


def clusters(partition: Partition, parts: int, worker_bytes: float | None = None) -> list[dict[str, Any]]:
    """As the schedulers of its clusters tell it."""
    told = partition_document(partition) | {"parts": parts, "worker_bytes": worker_bytes}
    return [told | {"cluster": number} for number in range(partition.clusters)]


def test_among_clusters_that_split_themselves_only_the_upper_level_is_computed() -> None:
    applications = tuple(
        Application(f"app-{n}", 50 * NS_PER_MS, (Variant("only", 0.9, (LatencyProfile.linear(1, 5),), 10, 4),))
        for n in range(8)
    )
    served = Deployment(applications, workers(1))
    before = Partition({f"app-{n}": n // 2 for n in range(8)}, 4, 2, 7)
    states, limits = clusters(before, 2), Limits(math.inf, math.inf, math.inf, 1)
    assert in_force(states) == before
    assert computed(served, [10.0] * 8, states, before, limits) is before, "balanced as it is"
    inner = [30.0, 30, 10, 10, 20, 20, 20, 20]  # out of balance within a cluster alone, which is its own business
    assert computed(served, inner, states, before, limits) is before
    after = computed(served, [40.0, 40, 40, 40, 10, 10, 10, 10], states, before, limits)
    assert after.version == 8 and after.sub_clusters == 4
    ((_, (old, new)),) = after.moved_from(before).items()
    assert old in (0, 1) and new in (2, 3), "the limit on change is kept"
    # Four models in two parts: two by two, with what one needs to run.
    assert computed(served, [10.0] * 8, clusters(before, 2, 24.0), before, limits) is before
    with pytest.raises(StrettoError, match="the workers of 2 clusters hold 76 bytes beside"):
        computed(served, [10.0] * 8, clusters(before, 2, 23.0), before, limits)
    with pytest.raises(StrettoError, match="queries/s"):
        computed(served, [10.0] * 8, states, before, limits._replace(max_cluster_rate=39.0))


def test_a_scheduler_that_was_started_anew_counts_from_nothing() -> None:
    before = [{"submitted": {"a": 100, "b": 5}}, {"submitted": {"a": 7}}]
    after = [{"submitted": {"a": 10, "b": 9}}, {"submitted": {"a": 9, "b": 3}}]
    assert asked_between(before, after) == {"a": 12, "b": 7}


def test_mistakes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "parts.json"
    file.write_text(partition_text(FIRST))
    url = free_endpoint().replace("tcp", "http")
    for arguments, told in (
        ((file, "--scheduler", url, "--follow"), "--follow"),
        ((file, "--scheduler", url), "reach"),
        ((file, "--scheduler", url, "--max-rate", "-1"), "above 0"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and told in result.stderr, result.output
