"""Loads against a real server: every request ends once, and is counted as what it was."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stretto.client import ConnectionFailed, NotFound, quiet_loop
from stretto.client.load import LoadOutcome, LoadProgress, LoadResult, LoadSpec, drive, run_load
from stretto.client.load.timeline import timeline
from stretto.core.errors import StrettoError
from tests.client.server import Server

QUERIES = np.random.default_rng(0).random((30, 4)).astype(np.float32)
LABELS = QUERIES[:, :3].argmax(axis=1)


def spec(server: Server, **options: Any) -> LoadSpec:
    usual: dict[str, Any] = {"rate": 500, "seconds": 0.25, "inputs": QUERIES, "labels": LABELS, "deadline_ms": 2_000}
    return LoadSpec("rows", url=server.url, **usual | options)


def counts(result: LoadResult) -> dict[str, int]:
    return {name: count for name, count in result.summary()["outcomes"].items() if count}


@pytest.mark.parametrize("rows", [1, 4])
def test_right_answers_on_time(server: Server, rows: int) -> None:
    seen: list[LoadProgress] = []
    result = run_load(spec(server, rows=rows), seen.append)
    told = result.summary()
    assert counts(result) == {"on_time": len(result)} and told["correct_on_time_share"] == told["accuracy"] == 1
    assert told["requests"] == len(result) > 60 and told["queries"] == rows * len(result)
    assert told["variants"] == {"good": 1.0} and told["mean_batch"] == rows
    assert (result.latency_ns > 0).all() and (result.lag_ns >= 0).all() and (result.latency_ns >= result.lag_ns).all()
    assert (np.diff(result.scheduled_ns) >= 0).all()
    assert seen[-1].ended == len(result) == seen[-1].on_time and seen[-1].fraction == 1
    assert seen[-1].correct_on_time == rows * len(result)
    assert server.rules.last["parameters"] == {"binary_data_output": True, "deadline_ms": 2000.0}


def test_variants_have_their_places_on_the_ladder_that_the_server_tells(server: Server) -> None:
    """Those that it serves come after it where it tells none, or nonsense."""
    for told, expected in (
        ("tiny,fast,middle,good", ("tiny", "fast", "middle", "good")),
        ("tiny,good", ("tiny", "good", "fast")),
        (None, ("fast", "good")),
        ("a,,b", ("fast", "good")),
    ):
        server.rules.ladder = told
        result = run_load(spec(server, seconds=0.05))
        assert result.variants == expected and result.summary()["variants"] == {"good": 1.0}


def test_wrong_answers_are_not_correct(server: Server) -> None:
    labels = np.where(np.arange(30) % 2, LABELS, (LABELS + 1) % 3)
    told = run_load(spec(server, labels=labels)).summary()
    assert told["accuracy"] == told["correct_on_time_share"] and 0.3 < told["accuracy"] < 0.7


def test_json_answers_count_too(server: Server) -> None:
    server.rules.is_binary = False
    assert run_load(spec(server, seconds=0.2)).summary()["correct_on_time_share"] == 1


def test_late_is_by_the_clock_of_the_generator(server: Server) -> None:
    """The server says on_time of every answer; a deadline of a microsecond passes before any arrives."""
    told = run_load(spec(server, deadline_ms=0.001)).summary()
    assert told["on_time_share"] == told["correct_on_time_share"] == 0 and told["accuracy"] == 1
    assert told["outcomes"]["late"] == told["requests"]


def test_without_a_deadline_the_slo_holds(server: Server) -> None:
    server.rules.slo_ms = 1_234.5
    result = run_load(spec(server, deadline_ms=None, labels=None, seconds=0.2))
    assert result.deadline_ns == 1_234_500_000 and "deadline_ms" not in server.rules.last["parameters"]
    assert result.summary()["correct_on_time_share"] is None and (result.correct == -1).all()


@pytest.mark.parametrize("reason", ["expired", "infeasible", "overloaded", "unavailable", "failed", "bad_request"])
def test_refusals_are_counted_by_reason(server: Server, reason: str) -> None:
    server.rules.refuse = reason
    result = run_load(spec(server, seconds=0.1))
    assert counts(result) == {reason: len(result)} and result.summary()["on_time_share"] == 0
    assert (result.variant == -1).all() and np.isnan(result.summary()["latency_ms"]["p99"])


def test_nonsense_is_counted_as_such(server: Server) -> None:
    for body in (b"no json", b'{"outputs":[]}', b"[1]", b'{"outputs":[{"parameters":3}]}'):
        server.rules.body = body
        result = run_load(spec(server, seconds=0.05))
        assert counts(result) == {"bad_answer": len(result)}


def test_a_server_that_never_answers(server: Server) -> None:
    """The connections are used up, so some requests are never sent; all of them end."""
    server.rules.holds = True
    result = run_load(spec(server, seconds=0.2, deadline_ms=10, grace_ms=50, connections=3))
    assert set(counts(result)) == {"no_answer", "not_sent"} and sum(counts(result).values()) == len(result)
    assert counts(result)["no_answer"] >= 3 and result.connections == 3
    assert (result.lag_ns[result.outcome == LoadOutcome.NOT_SENT] == -1).all()
    assert server.rules.left.acquire(timeout=5), "given up is given up for the server too"


def test_latency_counts_from_when_a_request_was_due(server: Server) -> None:
    """One connection, and all requests due at once: each waits for those before it, and that is in its latency."""
    result = run_load(spec(server, kind="burst:0:60000:0.5:0.004", rate=None, seconds=0.5, connections=1))
    assert len(result) > 50 and counts(result) == {"on_time": len(result)}
    assert result.waited >= len(result) - 2 and result.connections == 1
    assert np.corrcoef(result.latency_ns, np.arange(len(result)))[0, 1] > 0.9
    assert (result.latency_ns >= result.lag_ns).all()


def test_stale_connections_are_tried_anew_and_broken_ones_counted(server: Server) -> None:
    rules = server.rules

    def close_one(state: LoadProgress) -> None:
        if state.ended > 20 and rules.paths and rules.connections < 40:
            rules.closes = 1

    result = run_load(spec(server, connections=1, seconds=0.5), close_one)
    assert rules.connections >= 3 and counts(result) == {"on_time": len(result)}


def test_a_server_that_goes_away() -> None:
    gone = threading.Event()
    with Server() as server:

        def leave(state: LoadProgress) -> None:
            if state.ended > 20 and not gone.is_set():
                server.stop()
                gone.set()

        result = run_load(spec(server, seconds=0.8, deadline_ms=100, grace_ms=50), leave)
        assert gone.is_set()
        found = counts(result)
        assert found.pop("on_time") > 20 and found["no_connection"] > 10
        assert set(found) <= {"no_connection", "broken", "no_answer", "late", "not_sent"}
        assert result.summary()["connection_errors"] == found["no_connection"] + found.get("broken", 0)


def test_loads_that_cannot_begin(server: Server) -> None:
    with pytest.raises(NotFound):
        run_load(LoadSpec("other", QUERIES, url=server.url, rate=10))
    with pytest.raises(NotFound):
        run_load(spec(server, version="unknown"))
    with pytest.raises(StrettoError, match="takes an array"):
        run_load(spec(server, inputs=np.zeros((3, 2, 2)), labels=None))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionFailed):
            run_load(LoadSpec("rows", QUERIES, url=f"http://127.0.0.1:{unused.getsockname()[1]}", rate=10))


@pytest.fixture
def _listens_to_ctrl_c() -> Iterator[None]:
    """As from a terminal: a shell without job control starts what it puts in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_listens_to_ctrl_c")
def test_ctrl_c_keeps_what_was_measured(server: Server) -> None:
    def interrupt(state: LoadProgress) -> None:
        if state.ended > 10:
            os.kill(os.getpid(), signal.SIGINT)

    result = run_load(spec(server, seconds=60), interrupt)
    assert result.was_interrupted and 10 < len(result) < 1000 and counts(result) == {"on_time": len(result)}
    assert 0 < result.seconds < 30 and result.summary()["offered_rate"] > 10


def test_inside_a_loop_and_without_uvloop_or_timerfd(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.alarm.sys", SimpleNamespace(platform="elsewhere"))
    result = asyncio.run(drive(spec(server, seconds=0.3)))
    assert counts(result) == {"on_time": len(result)} and result.summary()["correct_on_time_share"] == 1
    monkeypatch.setattr(quiet_loop, "_loop_factory", lambda: None)
    assert len(run_load(spec(server, seconds=0.1)))


def test_the_timeline_adds_up(server: Server) -> None:
    result = run_load(spec(server, kind="burst:200:2000:0.25:0.4", rate=None, seconds=0.5))
    line = timeline(result, 0.05)
    assert len(line.middle_s) == 10 and line.middle_s[0] == pytest.approx(0.025)
    assert (line.offered_rate * 0.05).sum() == pytest.approx(len(result))
    assert np.nanmax(line.variant_share.sum(axis=0)) == pytest.approx(1) and np.nanmin(line.on_time_share) == 1
    assert line.offered_rate[3] > line.offered_rate[0] and (line.p99_ms >= line.p50_ms)[~np.isnan(line.p50_ms)].all()
