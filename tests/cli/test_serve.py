"""`stretto serve` and `stretto replay` as a person runs them: a process, real sockets, real models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.client import Client, Expired, Infeasible
from stretto.repository.read import zoo_folder

ROOT = Path(__file__).resolve().parents[2]
FREE = ("--http-port", "0", "--grpc-port", "0", "--management-port", "0", "--management-grpc-port", "0")
ADDRESS = re.compile(r"^\s+(\S.*?)\s+(?:https?://)?(127\.0\.0\.1:\d+)$")
LIMIT_S = 150.0  # the first start on a machine compiles the dispatcher


class Served:
    """A server of its own; what it says on standard error is read all the time."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stretto.cli.main", "serve", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def addresses(self, count: int = 4) -> dict[str, str]:
        """By listener, once so many are told."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = {match[1]: match[2] for line in list(self.lines) if (match := ADDRESS.match(line))}
            if len(found) >= count:
                return found
            assert self.process.poll() is None, self.lines
            time.sleep(0.01)
        raise AssertionError(self.lines)

    def ended(self) -> int:
        """Its exit code; everything it said is read by then."""
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    server = Served(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(30)


def ready(url: str) -> bool:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        with Client(url) as client:
            if client.ready():
                return True
        time.sleep(0.01)
    return False


def digits(count: int) -> np.ndarray:
    with np.load(zoo_folder() / "mnist" / "sample.npz") as stored:
        return stored["inputs"][:count].astype(np.float32) / np.float32(255)


def test_it_serves_drains_and_what_it_wrote_is_replayed(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with served("zoo:mnist", *FREE, "--workers", "1", "--record", str(events)) as server:
        found = server.addresses()
        assert len(found) == 4, found
        by_word = {name.lower().replace("-", " "): address for name, address in found.items()}
        http = next(address for name, address in by_word.items() if "grpc" not in name and "management" not in name)
        management = next(address for name, address in by_word.items() if "grpc" not in name and "management" in name)
        assert ready(f"http://{http}")
        with Client(f"http://{http}") as client:
            answer = client.infer("mnist", digits(3), deadline_ms=30_000)
            assert answer.output.shape == (3, 10) and answer.variant
            pinned = client.infer("mnist", digits(1), deadline_ms=30_000, version="linear")
            assert pinned.variant == "linear"
            with pytest.raises((Infeasible, Expired)):  # it may be over before it is looked at
                client.infer("mnist", digits(1), deadline_ms=0.001)
        with urllib.request.urlopen(f"http://{management}/metrics", timeout=30) as metrics:
            assert b"stretto" in metrics.read()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0, server.lines
        assert any("serving mnist with 1 worker(s)" in line for line in server.lines)
    result = CliRunner().invoke(app, ["replay", str(events), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["submitted"], told["differences"]) == (5, 0)
    assert told["outcomes"]["on_time"] == 4
    assert sum(told["outcomes"].values()) == 5
    text = CliRunner().invoke(app, ["replay", str(events)])
    assert text.exit_code == 0 and "0 of them different" in text.stdout
    tampered = re.sub(r'\["decided",0,\[\["run",0,\d', '["decided",0,[["run",0,9', events.read_text(), count=1)
    (tmp_path / "tampered.jsonl").write_text(tampered)
    different = CliRunner().invoke(app, ["replay", str(tmp_path / "tampered.jsonl")])
    assert different.exit_code == 1 and "1 of them different" in different.stdout


def test_with_worker_processes_and_fewer_listeners() -> None:
    options = ("--http-port", "0", "--grpc-port", "-1", "--management-port", "-1", "--management-grpc-port", "-1")
    with served("zoo:mnist", *options, "--executor", "process", "--workers", "1", "--variant", "mlp") as server:
        (http,) = server.addresses(1).values()
        assert ready(f"http://{http}")
        with Client(f"http://{http}") as client:
            answer = client.infer("mnist", digits(2), deadline_ms=30_000)
            assert answer.variant == "mlp"
        server.process.send_signal(signal.SIGINT)
        assert server.ended() == 0, server.lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zoo:nothing",), "the zoo has no application 'nothing'"),
        (("zoo:mnist", "--executor", "cloud"), "there is no executor 'cloud'"),
        (("zoo:mnist", "--planner", "fortune"), "fortune"),
        (("zoo:mnist", "--variant", "none"), "has no variant 'none'"),
        (("zoo:mnist", "--worker", "cpu,variant=none"), "there is no variant 'none'; there are mnist/cnn"),
        (("zoo", "--worker", "cpu,variant=mnist/mlp"), "no worker runs application"),
        (("zoo:mnist", "--token-file", "/no/such/file"), "/no/such/file"),
        (("zoo:mnist", "--tls-certificate", "/no/such/file.pem"), "/no/such/file.pem: there is no such file"),
        (("zoo:mnist", "--tls-certificate", __file__), "TLS needs both"),
        (("zoo:mnist", "--management-host", "0.0.0.0"), "give it a token"),
        (("zoo:mnist", "--record", "/no/such/folder/events"), "cannot be written"),
        (("zoo:mnist", "--record", __file__), "say --record-overwrite to replace it"),
    ],
)
def test_bad_options_are_told_in_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments, *FREE])
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.split()) and "Traceback" not in done.output


def test_help_shows_examples() -> None:
    for command in ("serve", "replay"):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Examples:" in result.stdout and "stretto serve zoo:fashion" in result.stdout


def test_a_log_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("[]\n")
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "other.jsonl")])
    assert result.exit_code != 0
