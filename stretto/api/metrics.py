"""Prometheus metrics, read off the engine when they are asked for. docs/serving.md says what each means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from stretto.api.plane import Plane
from stretto.core.outcome import Outcome
from stretto.core.telemetry import Telemetry
from stretto.live.generation import Generation
from stretto.live.meters import STAGES, Histogram

OUTCOME_LABELS = {
    Outcome.ON_TIME: ("on_time", ""),
    Outcome.LATE: ("late", ""),
    Outcome.DROPPED_INFEASIBLE: ("dropped", "infeasible"),
    Outcome.DROPPED_EXPIRED: ("dropped", "expired"),
    Outcome.DROPPED_OVERLOAD: ("dropped", "overloaded"),
    Outcome.DROPPED_CANCELLED: ("dropped", "cancelled"),
    Outcome.FAILED: ("failed", "failed"),
}


class Metrics:
    """A collector of Prometheus' own kind, in a registry of its own."""

    def __init__(self, plane: Plane):
        self._plane = plane
        self._before: tuple[Generation, Telemetry] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # type: ignore[arg-type]

    def text(self) -> bytes:
        return bytes(generate_latest(self._registry))

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        yield from self._counts()
        yield from self._times()
        yield from self._state()

    def _counts(self) -> Iterator[Any]:
        engine = self._plane.service.engine
        submitted = CounterMetricFamily("stretto_queries_submitted", "Queries taken in.", labels=["application"])
        ended = CounterMetricFamily(
            "stretto_queries_ended", "Queries by how they ended.", labels=["application", "outcome", "reason"]
        )
        for name, (count, outcomes) in engine.books.totals(engine.generations()).items():
            submitted.add_metric([name], count)
            for outcome, (word, reason) in OUTCOME_LABELS.items():
                ended.add_metric([name, word, reason], int(outcomes[outcome]))
        yield submitted
        yield ended
        refused = CounterMetricFamily("stretto_requests_refused", "Requests that became no query.", labels=["reason"])
        for reason, count in sorted(self._plane.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        by_variant = CounterMetricFamily(
            "stretto_variant_queries", "Queries run, by variant.", labels=["application", "variant"]
        )
        batches = CounterMetricFamily(
            "stretto_variant_batches", "Batches run, by variant.", labels=["application", "variant"]
        )
        busy = CounterMetricFamily(
            "stretto_variant_busy_seconds", "Worker time spent, by variant.", labels=["application", "variant"]
        )
        for (name, variant), meter in sorted(engine.meters.variants.items()):
            by_variant.add_metric([name, variant], meter.queries)
            batches.add_metric([name, variant], meter.batches)
            busy.add_metric([name, variant], meter.busy_ns / 1e9)
        yield by_variant
        by_evidence = CounterMetricFamily(
            "stretto_short_circuited_queries", "Queries answered by their evidence.", labels=["application"]
        )
        for name, count in sorted(engine.meters.short_circuited.items()):
            by_evidence.add_metric([name], count)
        yield by_evidence
        if engine.witness is not None:
            looked = CounterMetricFamily(
                "stretto_evidence_queries", "Queries whose evidence was computed, or left out.", labels=["result"]
            )
            looked.add_metric(["computed"], engine.witness.seen)
            looked.add_metric(["left_out"], engine.witness.skipped)
            yield looked
        maker = self._plane.service.maker
        if maker is not None:
            yield CounterMetricFamily("stretto_policies_made", "Policies made beside the serving.", value=maker.made)
            yield _gauge("stretto_policies_waiting", "Policies asked for and not there yet.", maker.waiting)
        yield batches
        yield busy

    def _times(self) -> Iterator[Any]:
        meters = self._plane.service.engine.meters
        stages = HistogramMetricFamily(
            "stretto_latency_seconds", "Time of answered queries, by stage.", labels=["application", "stage"]
        )
        slack = HistogramMetricFamily(
            "stretto_slack_seconds", "Left until the deadline when the answer was ready.", labels=["application"]
        )
        for name, histograms in sorted(meters.stages.items()):
            for stage, histogram in zip(STAGES, histograms, strict=True):
                buckets = _buckets(histogram, tuple(edge / 1e9 for edge in histogram.edges))
                if stage == "slack":  # without a sum: it may fall, and a counter must not
                    slack.add_metric([name], buckets, None)
                else:
                    stages.add_metric([name, stage], buckets, histogram.sum / 1e9)
        yield stages
        yield slack
        sizes = HistogramMetricFamily("stretto_batch_size", "Queries of a batch.", labels=["application"])
        for name, histogram in sorted(meters.batch_sizes.items()):
            sizes.add_metric([name], _buckets(histogram, histogram.edges), histogram.sum)
        yield sizes

    def _state(self) -> Iterator[Any]:
        engine = self._plane.service.engine
        telemetry = engine.generation.dispatcher.telemetry(engine.clock())
        waiting = GaugeMetricFamily("stretto_queue_depth", "Queries waiting in a lane.", labels=["lane"])
        rates = GaugeMetricFamily("stretto_arrival_rate", "λ of a lane, queries per second.", labels=["lane"])
        for lane, length, rate in zip(
            telemetry.lane_names, telemetry.lane_lengths.tolist(), telemetry.lane_rates.tolist(), strict=True
        ):
            waiting.add_metric([lane], length)
            rates.add_metric([lane], rate)
        yield waiting
        yield rates
        running = sum(each.dispatcher.running for each in engine.generations())
        yield _gauge("stretto_queries_running", "Queries in a running batch.", running)
        yield _gauge("stretto_requests_open", "Requests without an answer yet.", self._plane.open_requests)
        yield _gauge("stretto_workers_ready", "Workers that can serve.", engine.crew.ready_count)
        yield CounterMetricFamily(
            "stretto_worker_restarts", "Workers started again after they were lost.", value=engine.crew.restarts
        )
        generation = engine.generation
        before, self._before = self._before, (generation, telemetry)
        if before is not None and before[0] is generation:
            idle = telemetry.idle_share_since(before[1])
            yield _gauge("stretto_idle_share", "Share of worker time unused since the last reading.", idle)
        ratios = GaugeMetricFamily(
            "stretto_latency_ratio", "Measured over profiled latency.", labels=["application", "variant"]
        )
        deployment = engine.generation.deployment
        for number in range(len(deployment.variants)):
            application, variant = deployment.variant_label(number).split("/", 1)
            ratios.add_metric([application, variant], float(telemetry.latency_ratio[number].max()))
        yield ratios


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _buckets(histogram: Histogram, edges: tuple[float, ...]) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for edge, count in zip((*edges, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if edge == float("inf") else f"{edge:g}", total))
    return buckets
