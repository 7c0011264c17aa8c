"""Spans: one a request, the caller's trace its parent, its queue and run inside, an error where there is no answer."""

from __future__ import annotations

import gc
import http.client
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api.messages import InferRequest
from stretto.core.outcome import Outcome
from stretto.live.requests import Request
from tests.api.serving import INFER, Running, images, json_body

memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="OpenTelemetry is an extra"
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def ended_request(outcome: Outcome) -> list:
    from stretto.api.tracing import Tracing

    exporter = memory.InMemorySpanExporter()
    tracing = Tracing(exporter)
    seen = []
    request = Request("fashion", np.zeros((1, 2)), 50_000_000, seen.append)
    request.arrival_ns, request.deadline_ns = 1_000_000, 51_000_000
    tracing.begin(InferRequest("fashion", [], traceparent=TRACE), request)
    if outcome is Outcome.ON_TIME:
        request.queue_ns, request.run_ns, request.batch = 2_000_000, 3_000_000, 4
        request.answer(0, np.ones((1, 1)), "cnn", 0.9)
    request.end(outcome, 7_000_000)
    assert seen == [request], "the request ends as it would without spans"
    tracing.close()
    assert tracing.made == tracing.sent
    return list(exporter.get_finished_spans())


def test_an_answer_has_its_queue_and_its_run() -> None:
    queue, run, whole = ended_request(Outcome.ON_TIME)
    assert [span.name for span in (queue, run, whole)] == ["queue", "run", "infer fashion"]
    assert whole.end_time - whole.start_time == 6_000_000
    assert queue.end_time - queue.start_time == 2_000_000 and run.end_time - run.start_time == 3_000_000
    assert queue.parent.span_id == run.parent.span_id == whole.context.span_id
    assert (
        f"{whole.context.trace_id:032x}" == TRACE.split("-")[1]
        and f"{whole.parent.span_id:016x}" == TRACE.split("-")[2]
    )
    assert whole.attributes["stretto.variant"] == "cnn" and whole.attributes["stretto.batch"] == 4
    assert whole.attributes["stretto.slack_ms"] == 44.0 and whole.status.is_unset


def test_a_refusal_is_an_error() -> None:
    (whole,) = ended_request(Outcome.DROPPED_OVERLOAD)
    assert not whole.status.is_ok and whole.status.description == "dropped_overload"


class Nowhere:
    """An exporter to a collector that takes the connection and never answers, or takes none at all."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self.address, self.timeout_s = address, timeout_s
        self.tried = threading.Event()

    def export(self, spans: Sequence[Any]) -> Any:
        self.tried.set()
        connection = http.client.HTTPConnection(*self.address, timeout=self.timeout_s)
        connection.request("POST", "/v1/traces", b"spans")
        connection.getresponse()
        raise AssertionError("nobody answers here")

    def shutdown(self) -> None: ...


TOLD = "no collector takes the spans"


def until_told(caplog: pytest.LogCaptureFixture) -> None:
    end = time.monotonic() + 30
    while TOLD not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_server_whose_spans_go_nowhere_serves(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from stretto.api.tracing import Tracing

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener, Running(repository) as server:
        exporter = Nowhere(listener.getsockname(), timeout_s=3_600.0)
        server.plane.tracing = tracing = Tracing(exporter)
        for _ in range(50):
            assert server.ask("POST", INFER, json_body(images()), traceparent="00-nonsense").status == 200
        assert exporter.tried.wait(30)
        text = server.ask("GET", "/metrics", name="management").body.decode()
        assert 'stretto_spans_total{state="made"} 150.0' in text and 'stretto_spans_total{state="sent"} 0.0' in text
        assert server.counts()[1]["on_time"] == 50
        tracing.close()
        listener.close()
        until_told(caplog)


def end_one(tracing: Any) -> None:
    seen: list[Request] = []
    request = Request("fashion", np.zeros((1, 2)), 50_000_000, seen.append)
    tracing.begin(InferRequest("fashion", [], traceparent="no trace at all"), request)
    request.end(Outcome.FAILED, 7_000_000)
    assert seen == [request]


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_collector_that_is_not_there_holds_nobody(
    is_listening: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's own end would wait half a minute here; and its queue has a bound."""
    from stretto.api.tracing import Tracing

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    if not is_listening:
        listener.close()
    exporter = Nowhere(address, timeout_s=3_600.0)
    tracing = Tracing(exporter)
    for _ in range(5_000):  # more than its queue holds
        end_one(tracing)
    assert exporter.tried.wait(30)
    before = time.monotonic()
    tracing.close()
    assert time.monotonic() - before < 20
    assert (tracing.made, tracing.sent) == (5_000, 0)
    listener.close()  # and whoever waited for it hears of that
    until_told(caplog)
    assert sum(TOLD in record.message for record in caplog.records) == 1
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


class Refusing:
    """Nobody listens, until somebody does. The error keeps its frames in a circle, as those of HTTP clients do."""

    def __init__(self) -> None:
        self.is_there = False
        self.seen: list[int] = []

    def export(self, spans: Sequence[Any]) -> bool:
        if self.is_there:
            self.seen += [span.number for span in spans]
            return True
        try:
            raise OSError("connection refused")
        except OSError as error:
            kept = [error]
            kept.append(kept)
            return False


class Span:
    def __init__(self, number: int) -> None:
        self.number = number


def test_what_nobody_takes_is_let_go_of_and_what_comes_after_is_sent() -> None:
    from stretto.api.tracing import _WatchedExporter

    collector = Refusing()
    watched = _WatchedExporter(collector, True, False)
    gc.collect()
    gc.disable()
    try:
        assert watched.export([Span(0)]) is False
        spans = [Span(number) for number in range(100)]
        watching = [weakref.ref(span) for span in spans]
        assert watched.export(spans) is False and watched.sent == 0
        del spans
        assert sum(span() is not None for span in watching) <= 1
    finally:
        gc.enable()
    collector.is_there = True
    assert watched.export([Span(number) for number in range(3)]) is True
    assert watched.export([Span(3)]) is True and watched.export([]) is True
    assert collector.seen == [0, 1, 2, 3] and watched.sent == 4
