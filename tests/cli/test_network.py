"""`stretto network` as a person runs it: a process of its own between a client and a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.bandwidth import BUILT_IN, read_bandwidth
from stretto.cli.main import app
from stretto.client import Client
from stretto.core.errors import StrettoError
from tests.client.server import Server


def test_a_client_behind_a_link() -> None:
    with Server() as server:
        words = ["network", "200kbit", "--to", server.url.removeprefix("http://"), "--port", "0", "--delay-ms", "30"]
        process = subprocess.Popen(
            [sys.executable, "-m", "stretto", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("listening on 127.0.0.1:"), line
            url = f"http://{line.split(',')[0].removeprefix('listening on ')}"
            with Client(url) as client:
                client.infer("rows", np.zeros(4, np.float32))
                start_s = time.monotonic()
                client.infer("rows", np.zeros((500, 4), np.float32))  # 8,000 bytes and the head
                took_s = time.monotonic() - start_s
            assert took_s > 0.06 + 8_000 / 25_000
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    summary = json.loads(out)
    assert summary["up"]["received_bytes"] == summary["up"]["delivered_bytes"] > 8_000
    assert summary["up"]["given_mbit"] == pytest.approx(0.2) and summary["down"]["given_mbit"] is None
    assert summary["connections"] >= 1 and summary["refused"] == 0


def test_a_table_at_the_end() -> None:
    with Server() as server:
        to = server.url.removeprefix("http://")
        result = CliRunner().invoke(app, ["network", "steps", "--to", to, "--port", "0", "--seconds", "0.2"])
    assert result.exit_code == 0, result.output
    assert "steps: 0.2 s, 0 connections, 0 refused" in result.stdout and "1.600" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.txt",), "no such file; a trace is a file, a rate such as 5mbit, or one of steady"),
        (("steps", "--to", "8080"), "no address of a server"),
        (("steps", "--to", "127.0.0.1:1"), "cannot be reached"),
        (("steps", "--form", "csv"), "the form of a trace is mbit or mahimahi"),
        (("steps", "--queue-bytes", "5"), "a link's queue is 5 bytes"),
        (("steps", "--scale", "0"), "a factor above zero"),
    ],
)
def test_errors_are_sentences(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["network", *arguments])
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_traces_by_name_by_rate_and_from_files(tmp_path: Path) -> None:
    for name in BUILT_IN:
        trace = read_bandwidth(name)
        assert trace.period_ns >= 20e9 and trace.least > 0 and 50_000 < trace.mean < 250_000
    assert read_bandwidth("300kbit").mean == 37_500 and read_bandwidth("5Mbit", scale=0.5).mean == 312_500
    file = tmp_path / "walk.txt"
    file.write_text("8\n16\n")
    assert read_bandwidth(str(file), step_s=20).rate_at(25 * 10**9) == 2e6
    file.write_text("5\n10\n")
    assert read_bandwidth(str(file), "mahimahi").mean == pytest.approx(300_000)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StrettoError, match=r"walk.txt: cannot be read"):
        read_bandwidth(str(file))
    file.write_text("8\nfast\n")
    with pytest.raises(StrettoError, match=r"walk.txt: line 2"):
        read_bandwidth(str(file))
