"""The log on a full disk, a closed pipe, or one that nobody reads: lines are lost and counted, and nobody waits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.api import logs
from stretto.api.logs import JsonLines, LogLines, lost_lines, set_up_logs
from stretto.core.errors import StrettoError

PATIENCE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def logger_of(handler: LogLines) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_lines_come_in_order_and_at_once(pipe: tuple[int, int]) -> None:
    handler = LogLines(pipe[1])
    logger = logger_of(handler)
    handler.say("  http  127.0.0.1:1")
    logger.warning("cost: %d €", 7)
    assert os.read(pipe[0], 1000).decode().splitlines()[0] == "  http  127.0.0.1:1"
    handler.flush()
    handler.setFormatter(JsonLines())
    logger.error("no")
    handler.flush()
    text = os.read(pipe[0], 10_000).decode()
    assert json.loads(text.splitlines()[-1])["message"] == "no"
    assert handler.lost == 0


def test_a_full_disk_costs_lines_only() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        handler = LogLines(full.fileno())
        logger = logger_of(handler)
        for _ in range(50):
            logger.error("nobody reads this")
        handler.flush()
        assert handler.lost == 50


def test_a_closed_pipe_costs_lines_only(pipe: tuple[int, int]) -> None:
    handler = LogLines(pipe[1])
    os.close(pipe[0])
    logger_of(handler).error("nobody reads this")
    handler.flush()
    assert handler.lost == 1
    none = LogLines(logs.NOBODY)
    none.say("nobody reads this either")
    none.flush()
    assert none.lost == 1


def test_a_pipe_that_nobody_reads_holds_nobody(pipe: tuple[int, int]) -> None:
    """It used to hold the event loop: whoever logged waited for the reader, and every query with it."""
    handler = LogLines(pipe[1])
    logger = logger_of(handler)
    line = "x" * 100_000
    for _ in range(100):  # more than pipe and buffer hold
        logger.error(line)
    assert 0 < handler.lost < 100
    written = 100 - handler.lost
    found = 0
    while found < written * 100_001:
        found += len(os.read(pipe[0], 1 << 20))
    logger.error("and then it is read again")
    handler.flush()
    assert b"read again" in os.read(pipe[0], 1000)


def test_a_pipe_that_somebody_made_non_blocking(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    handler = LogLines(pipe[1])
    logger = logger_of(handler)
    for _ in range(30):
        logger.error("x" * 9_999)
    found = 0
    while found < 30 * 10_000:
        found += len(os.read(pipe[0], 1 << 20))
    assert handler.lost == 0


def test_a_message_that_does_not_fit_its_arguments(pipe: tuple[int, int]) -> None:
    handler = LogLines(pipe[1])
    logger_of(handler).error("%d queries", "many")
    assert handler.lost == 1


AT_THE_END = """
import logging, os, sys
from stretto.api.logs import set_up_logs, lost_lines
handler = set_up_logs("text", "info")
logging.getLogger("stretto").info("the last words")
if len(sys.argv) > 1:
    os.close(2)
    taken = os.open("/dev/zero", os.O_RDONLY)  # has the number of standard error now
    logging.getLogger("stretto").info("after it was closed")
print(lost_lines())
"""


@pytest.mark.parametrize(
    ("shell", "lost"), [("", "0"), ("2>/dev/full", ""), ("2>&-", ""), ("closing", "0"), ("2>&1 | true", None)]
)
def test_a_process_ends_well_whatever_its_standard_error_is(shell: str, lost: str | None) -> None:
    command = f"{sys.executable} -c '{AT_THE_END}' {shell}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command] if lost is not None else ["sh", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if shell in ("", "closing"):
        assert "the last words" in done.stderr
        assert ("after it was closed" in done.stderr) == (shell == "closing")
    if lost:
        assert done.stdout.strip() == lost


def test_levels_and_formats() -> None:
    for level, log_format in (("loud", "text"), ("info", "xml")):
        with pytest.raises(StrettoError, match="there is no log"):
            set_up_logs(log_format, level)
    assert lost_lines() >= 0
