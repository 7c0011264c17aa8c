"""Spans: one a request, the caller's trace its parent, its queue and run inside, an error where there is no answer."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.api.messages import InferRequest
from stretto.core.outcome import Outcome
from stretto.live.requests import Request

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
