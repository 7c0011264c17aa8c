"""`stretto serve --front-ends` as a person runs it: ports, signals, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.client import Client, StrettoClientError, Unauthenticated
from tests.cli.test_serve import FREE, LIMIT_S, ROOT, Served, digits, served
from tests.cli.test_serve_faults import TOKENS, make_certificate, reloaded, shown, until

SMALL = ("zoo:mnist", "--workers", "1", "--variant", "linear", "--planner", "priced", "--front-ends", "2")
TRIES = 12  # connections, so that both front ends are met


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def serving(server: Served) -> dict[str, str]:
    found = server.addresses()
    until(lambda: any("serving mnist" in line for line in list(server.lines)))
    assert any("behind 2 front ends" in line for line in server.lines)
    return found


def test_it_serves_drains_and_leaves_nothing(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with served(*SMALL, *FREE, "--executor", "process", "--record", str(events)) as server:
        found = serving(server)
        processes = children(server.process.pid)
        assert len(processes) >= 3
        answered, refused, stop = [], [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    with Client(f"http://{found['http']}") as client:
                        while not stop.is_set():
                            client.infer("mnist", digits(2), deadline_ms=30_000)
                            answered.append(1)
                except StrettoClientError as error:  # in the end; clients go elsewhere then
                    refused.append(str(error))
                    return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 40)
        assert not refused
        with urllib.request.urlopen(f"http://{found['management']}/metrics", timeout=30) as metrics:
            assert b'stretto_front_end_listening{front_end="1"} 1.0' in metrics.read()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0, server.lines
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not any(os.path.exists(f"/proc/{process}") for process in processes)
        assert not any("Traceback" in line or "lost" in line for line in server.lines), server.lines
    told = json.loads(CliRunner().invoke(app, ["replay", str(events), "--json"]).stdout)
    assert told["differences"] == 0 and told["submitted"] == sum(told["outcomes"].values())
    assert told["outcomes"]["on_time"] >= 2 * len(answered)
    assert told["outcomes"].get("failed", 0) == 0


def test_a_server_that_is_killed_leaves_no_front_ends() -> None:
    with served(*SMALL, *FREE) as server:
        serving(server)
        processes = children(server.process.pid)
        server.process.kill()
        server.process.wait(30)
        until(lambda: not any(_lives(process) for process in processes))


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_hangup_reaches_every_front_end(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKENS[0])
    secured = ("--token-file", str(token), "--tls-key", str(tmp_path / "key.pem"))
    secured += ("--tls-certificate", str(tmp_path / "certificate.pem"))
    with served(*SMALL, *FREE, *secured) as server:
        found = serving(server)
        before = {shown(found[name]) for name in ("http", "grpc", "management") for _ in range(TRIES)}
        assert len(before) == 1
        shutil.copy(tmp_path / "certificate.pem", tmp_path / "first.pem")
        token.write_text(TOKENS[1])
        make_certificate(tmp_path)
        reloaded(server, "reloaded: ")
        after = {shown(found[name]) for name in ("http", "grpc", "management") for _ in range(TRIES)}
        assert len(after) == 1 and not after & before
        for _ in range(TRIES):
            with Client(f"https://{found['http']}", token=TOKENS[1], ca_file=tmp_path / "certificate.pem") as client:
                assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
            with (
                Client(f"https://{found['http']}", token=TOKENS[0], ca_file=tmp_path / "certificate.pem") as client,
                pytest.raises(Unauthenticated),
            ):
                client.infer("mnist", digits(1), deadline_ms=30_000)
        server.process.send_signal(signal.SIGINT)
        assert server.ended() == 0, server.lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--client-requests", "5"), "limits of clients need one front end"),
        (("--shared-memory",), "shared memory with clients needs one front end"),
        (("--in-flight-mb", "10"), "give more (--in-flight-mb)"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stretto.cli.main", "serve", *SMALL, *FREE, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert words in done.stderr and "Traceback" not in done.stderr
