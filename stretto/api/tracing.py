"""OpenTelemetry spans, one for each request, its queue and run inside. An extra: pip install 'stretto[telemetry]'.

Where spans go is OpenTelemetry's own configuration (OTEL_EXPORTER_OTLP_ENDPOINT and its kin). They are sent from a
thread of OpenTelemetry's, out of a bounded queue: a collector that is slow or not there costs spans, never a query.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.api.messages import InferRequest
from stretto.core.errors import StrettoError
from stretto.live.requests import Request

log = logging.getLogger("stretto.api")

CLOSE_S = 2.0  # for the last spans, at the end


ALL = ""  # applications that have no sampling of their own


@dataclass(slots=True)
class Sampling:
    """Which requests have spans: one of `every`, and only `left` more; -1: no end."""

    is_on: bool = True
    every: int = 1
    left: int = -1
    asked: int = 0  # requests since it was set

    def chooses(self) -> bool:
        if not self.is_on or not self.left:
            return False
        self.asked += 1
        if (self.asked - 1) % self.every:
            return False
        self.left -= self.left > 0
        return True


class Tracing:
    """`begin` is what the data plane calls for each request that it takes. Without `exporter`: OTLP over HTTP.

    `made` counts spans, `sent` those that a collector took; the others wait or are lost.
    """

    def __init__(self, exporter: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ImportError:
            raise StrettoError("spans need OpenTelemetry; install it with: pip install 'stretto[telemetry]'") from None
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it complains of every span; we say it once
        self.made = 0
        self._sampling = {ALL: Sampling()}
        self._trace = trace
        self._watched = _WatchedExporter(exporter, SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
        # Its own end would wait half a minute for a collector that is not there.
        self._provider = TracerProvider(resource=Resource.create({"service.name": "stretto"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._watched))
        self._tracer = self._provider.get_tracer("stretto")
        self._propagator = TraceContextTextMapPropagator()

    @property
    def sent(self) -> int:
        return self._watched.sent

    def sampling_of(self, application: str = ALL) -> Sampling:
        return self._sampling.get(application) or self._sampling[ALL]

    def sample(self, application: str, sampling: Sampling | None) -> None:
        """From now on; None: as all others."""
        if sampling is None:
            self._sampling.pop(application, None)
        else:
            self._sampling[application] = sampling

    def sampling(self) -> dict[str, Sampling]:
        """By application; "" stands for all that have none of their own."""
        return dict(self._sampling)

    def sample_all(self, sampling: dict[str, Sampling]) -> None:
        """These, and no others."""
        self._sampling = {ALL: Sampling()} | sampling

    def begin(self, request: InferRequest, entered: Request) -> None:
        """The spans are made when the request ends: then all of their times are known."""
        if not self.sampling_of(request.application).chooses():
            return
        traceparent = request.traceparent
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        done = entered.done

        def ended(ending: Request) -> None:
            try:
                self._tell(ending, traceparent, to_wall_ns)
            except Exception:  # whatever becomes of the span, the client has its answer
                log.exception("a span could not be made")
            done(ending)

        entered.done = ended

    def close(self) -> None:
        """What waits is sent, if that does not take long."""
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _tell(self, ending: Request, traceparent: str, to_wall_ns: int) -> None:
        trace, tracer = self._trace, self._tracer
        span = tracer.start_span(
            f"infer {ending.application}",
            context=self._propagator.extract({"traceparent": traceparent}) if traceparent else None,
            kind=trace.SpanKind.SERVER,
            start_time=ending.arrival_ns + to_wall_ns,
            attributes=_attributes(ending),
        )
        inside = trace.set_span_in_context(span)
        if ending.run_ns:
            started_ns = ending.arrival_ns + ending.queue_ns
            self._child(inside, "queue", ending.arrival_ns + to_wall_ns, started_ns + to_wall_ns)
            self._child(inside, "run", started_ns + to_wall_ns, started_ns + ending.run_ns + to_wall_ns)
        if ending.outcome is not None and not ending.outcome.is_answer:
            span.set_status(trace.Status(trace.StatusCode.ERROR, ending.outcome.name.lower()))
        span.end(ending.ended_ns + to_wall_ns)
        self.made += 1

    def _child(self, context: Any, name: str, start_ns: int, end_ns: int) -> None:
        self._tracer.start_span(name, context=context, start_time=start_ns).end(end_ns)
        self.made += 1


class _WatchedExporter:
    """Counts what another exporter sends, and says once that it sends nothing. On the thread that sends."""

    def __init__(self, exporter: Any, success: Any, failure: Any) -> None:
        self.sent = 0
        self._exporter, self._success, self._failure = exporter, success, failure
        self._is_failing = False

    def export(self, spans: Sequence[Any]) -> Any:
        """While nobody takes them, one is tried before the others. An error keeps every frame that it came through, and
        what is held there, until the garbage collector comes, which is seldom: spans are let go of before.
        """
        result = self._exported(spans[:1]) if self._is_failing else self._success
        if result is self._success:
            result = self._exported(spans[1:] if self._is_failing else spans)
        if result is not self._success and not self._is_failing:
            log.warning("no collector takes the spans of requests; serving goes on, and spans are lost until one does")
        self._is_failing = result is not self._success
        del spans
        return result

    def _exported(self, spans: Sequence[Any]) -> Any:
        if not spans:
            return self._success
        try:
            result = self._exporter.export(spans)
        except Exception:
            result = self._failure
        if result is self._success:
            self.sent += len(spans)
        del spans
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


def _attributes(request: Request) -> dict[str, Any]:
    outcome = "" if request.outcome is None else request.outcome.name.lower()
    return {
        "stretto.application": request.application,
        "stretto.variant": ",".join(request.variants),
        "stretto.rows": request.rows,
        "stretto.batch": request.batch,
        "stretto.outcome": outcome,
        "stretto.slack_ms": (request.deadline_ns - request.ended_ns) / 1e6,
    }
