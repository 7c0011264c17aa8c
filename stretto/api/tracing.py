"""OpenTelemetry spans, one for each request, its queue and run inside. An extra: pip install 'stretto[telemetry]'.

Where spans go is OpenTelemetry's own configuration (OTEL_EXPORTER_OTLP_ENDPOINT and its kin).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from stretto.api.messages import InferRequest
from stretto.core.errors import StrettoError
from stretto.live.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("stretto.api")


def tracer_of(exporter: Any = None) -> Callable[[InferRequest, Request], None]:
    """What the data plane calls for each request that it takes. Without `exporter`: OTLP over HTTP."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise StrettoError("spans need OpenTelemetry; install it with: pip install 'stretto[telemetry]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "stretto"}))
    if exporter is None:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    else:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("stretto")
    propagator = TraceContextTextMapPropagator()

    def begin(request: InferRequest, entered: Request) -> None:
        """The spans are made when the request ends: then all of their times are known."""
        parent = propagator.extract({"traceparent": request.traceparent}) if request.traceparent else None
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        done = entered.done

        def ended(ending: Request) -> None:
            try:
                tell(ending, parent, to_wall_ns)
            except Exception:  # whatever becomes of the span, the client has its answer
                log.exception("a span could not be made")
            done(ending)

        entered.done = ended

    def tell(ending: Request, parent: Any, to_wall_ns: int) -> None:
        span = tracer.start_span(
            f"infer {ending.application}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=ending.arrival_ns + to_wall_ns,
            attributes=_attributes(ending),
        )
        inside = trace.set_span_in_context(span)
        if ending.run_ns:
            started_ns = ending.arrival_ns + ending.queue_ns
            _child(tracer, inside, "queue", ending.arrival_ns + to_wall_ns, started_ns + to_wall_ns)
            _child(tracer, inside, "run", started_ns + to_wall_ns, started_ns + ending.run_ns + to_wall_ns)
        if ending.outcome is not None and not ending.outcome.is_answer:
            span.set_status(trace.Status(trace.StatusCode.ERROR, ending.outcome.name.lower()))
        span.end(ending.ended_ns + to_wall_ns)

    return begin


def _child(tracer: Any, context: Any, name: str, start_ns: int, end_ns: int) -> None:
    tracer.start_span(name, context=context, start_time=start_ns).end(end_ns)


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
