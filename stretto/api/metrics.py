"""Prometheus metrics: a Snapshot of the server in the format that everybody scrapes. docs/serving.md explains each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from stretto.api.feedback import Feedback
from stretto.api.front_counts import FrontCounts
from stretto.api.logs import lost_lines
from stretto.api.plane import Plane
from stretto.core.advice import Scaling
from stretto.core.outcome import Outcome
from stretto.core.snapshot import Distribution, Snapshot

FRONT_END = "front_end"  # the label
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
    """It remembers nothing between two readings."""

    def __init__(self, plane: Plane):
        self._plane = plane

    async def text(self) -> bytes:
        """As of now, in Prometheus' format. It is written in a thread: that takes tens of milliseconds, in which the
        loop answers others.
        """
        now = None if self._plane.is_starting else self._plane.control.snapshot()
        fronts = self._plane.fronts()
        return await asyncio.to_thread(_written, list(self._own(fronts)), now, fronts)

    def _own(self, fronts: Mapping[str, FrontCounts]) -> Iterator[Any]:
        """What the data plane counts, here and at front ends."""
        plane = self._plane
        yield _gauge("stretto_start_progress", "How far the start is, from 0 to 1.", plane.progress)
        refused = _Family(CounterMetricFamily, fronts, "requests_refused", "Requests that became no query.", "reason")
        yield refused.of(plane.refused, lambda counts: counts.refused)
        if plane.rates is not None:
            limited = CounterMetricFamily(
                "stretto_requests_limited", "Requests refused because their client asked too much.", labels=["limit"]
            )
            for limit, count in plane.rates.refused.items():
                limited.add_metric([limit], count)
            yield limited
        lost = _Family(CounterMetricFamily, fronts, "log_lines_lost", "Lines of the log not written.")
        yield lost.of({"": lost_lines()}, lambda counts: {"": counts.log_lines_lost})
        if plane.tracing is not None:
            spans = _Family(CounterMetricFamily, fronts, "spans", "Spans made, and taken by a collector.", "state")
            made = {"made": plane.tracing.made, "sent": plane.tracing.sent}
            yield spans.of(made, lambda counts: {"made": counts.spans_made, "sent": counts.spans_sent})
        opened = _Family(GaugeMetricFamily, fronts, "requests_open", "Requests without an answer yet.")
        yield opened.of({"": plane.open_requests}, lambda counts: {"": counts.requests_open})
        budget = plane.budget
        used = _Family(GaugeMetricFamily, fronts, "bytes_in_flight", "Bodies being read, and tensors that wait or run.")
        yield used.of({"": budget.used}, lambda counts: {"": counts.bytes_in_flight})
        most = _Family(GaugeMetricFamily, fronts, "bytes_in_flight_limit", "What they may have together.")
        yield most.of({"": budget.limit}, lambda counts: {"": counts.bytes_in_flight_limit})
        given_up = _Family(
            CounterMetricFamily, fronts, "bodies_given_up", "Bodies that were half read, and refused for room."
        )
        yield given_up.of({"": budget.given_up}, lambda counts: {"": counts.bodies_given_up})
        if fronts:
            listening = _Family(GaugeMetricFamily, fronts, "front_end_listening", "1: it takes connections.")
            yield listening.of({}, lambda counts: {"": int(counts.is_listening)})
            restarts = _Family(CounterMetricFamily, fronts, "front_end_restarts", "Started again after it was lost.")
            yield restarts.of({}, lambda counts: {"": counts.restarts})
            connections = _Family(GaugeMetricFamily, fronts, "front_end_connections", "HTTP connections that are open.")
            yield connections.of({}, lambda counts: {"": counts.connections})
        if plane.feedback is not None and not fronts:
            yield from _agreement(plane.feedback)
        regions = plane.regions
        if regions.is_allowed:
            yield _gauge(
                "stretto_shared_memory_regions", "Regions registered, or still used by a request.", regions.open
            )
            yield _gauge("stretto_shared_memory_bytes", "What they have together.", regions.open_bytes)


def _agreement(feedback: Feedback) -> Iterator[Any]:
    labels = ["application", "variant"]
    counted = CounterMetricFamily("stretto_feedback", "Labelled queries.", labels=[*labels, "result"])
    expected = CounterMetricFamily(
        "stretto_feedback_expected", "Labelled queries that are right by the accuracy that was stated.", labels=labels
    )
    for label, agreement in feedback.agreements.items():
        counted.add_metric([*label, "right"], agreement.right)
        counted.add_metric([*label, "wrong"], agreement.wrong)
        if agreement.expected:
            expected.add_metric(label, agreement.expected)
    yield counted
    yield expected
    refused = CounterMetricFamily("stretto_feedback_refused", "Labels that count for nothing.", labels=["reason"])
    for reason, count in feedback.refused.items():
        refused.add_metric([reason], count)
    yield refused


class _Family:
    """What every front end counts for itself, too: labelled with its number where there are any, and without one for
    the process that is scraped.
    """

    def __init__(self, kind: Any, fronts: Mapping[str, FrontCounts], name: str, text: str, label: str = ""):
        self._labels = [label] if label else []
        self._fronts = fronts
        self._family = kind(f"stretto_{name}", text, labels=[*self._labels, *([FRONT_END] if fronts else [])])

    def of(self, own_values: Mapping[str, float], of_front: Callable[[FrontCounts], Mapping[str, float]]) -> Any:
        """Values by the one label, or "" where there is none."""
        self._add(own_values, [""] if self._fronts else [])
        for number, counts in self._fronts.items():
            self._add(of_front(counts), [number])
        return self._family

    def _add(self, values: Mapping[str, float], front: Sequence[str]) -> None:
        for name, value in sorted(values.items()):
            self._family.add_metric([*([name] if self._labels else []), *front], value)


class _Read(Collector):
    """What was read in one moment, as Prometheus' writer takes it."""

    def __init__(self, own_families: list[Any], now: Snapshot | None, fronts: Mapping[str, FrontCounts]):
        self._own, self._now, self._fronts = own_families, now, fronts

    def collect(self) -> Iterator[Any]:
        yield from self._own
        now = self._now
        if now is None:
            return
        yield from _counts(now)
        yield from _times(now, self._fronts)
        yield from _state(now)
        if now.scaling is not None:
            yield from _scaling(now.scaling)
        if now.partition is not None:
            yield _gauge("stretto_partition_version", "Of the partition in force.", now.partition)
            yield _gauge("stretto_applications_leaving", "Of which others have not taken over yet.", now.leaving)


def _written(own_families: list[Any], now: Snapshot | None, fronts: Mapping[str, FrontCounts]) -> bytes:
    return bytes(generate_latest(_Read(own_families, now, fronts)))


def _counts(now: Snapshot) -> Iterator[Any]:
    submitted = CounterMetricFamily("stretto_queries_submitted", "Queries taken in.", labels=["application"])
    ended = CounterMetricFamily(
        "stretto_queries_ended", "Queries by how they ended.", labels=["application", "outcome", "reason"]
    )
    by_evidence = CounterMetricFamily(
        "stretto_short_circuited_queries", "Queries answered by their evidence.", labels=["application"]
    )
    utility = CounterMetricFamily(
        "stretto_utility",
        "Sum over answers of expected accuracy, less what lateness takes by the application's penalty.",
        labels=["application"],
    )
    for state in now.applications:
        submitted.add_metric([state.name], state.submitted)
        utility.add_metric([state.name], state.utility)
        for outcome, (word, reason) in OUTCOME_LABELS.items():
            ended.add_metric([state.name, word, reason], state.outcomes[outcome])
        if state.short_circuited:
            by_evidence.add_metric([state.name], state.short_circuited)
    yield submitted
    yield ended
    yield utility
    yield by_evidence
    labels = ["application", "variant"]
    by_variant = CounterMetricFamily("stretto_variant_queries", "Queries run, by variant.", labels=labels)
    batches = CounterMetricFamily("stretto_variant_batches", "Batches run, by variant.", labels=labels)
    busy = CounterMetricFamily("stretto_variant_busy_seconds", "Worker time spent, by variant.", labels=labels)
    for variant in now.variants:
        if variant.batches:
            by_variant.add_metric([variant.application, variant.name], variant.queries)
            batches.add_metric([variant.application, variant.name], variant.batches)
            busy.add_metric([variant.application, variant.name], variant.busy_ns / 1e9)
    yield by_variant
    yield batches
    yield busy
    if now.evidence_computed is not None:
        looked = CounterMetricFamily(
            "stretto_evidence_queries", "Queries whose evidence was computed, or left out.", labels=["result"]
        )
        looked.add_metric(["computed"], now.evidence_computed)
        looked.add_metric(["left_out"], now.evidence_left_out)
        yield looked
    switches = CounterMetricFamily(
        "stretto_variant_switches",
        "Plans that gave a worker another variant, by whether it had that in memory.",
        labels=["hit"],
    )
    switches.add_metric(["true"], now.switch_hits)
    switches.add_metric(["false"], now.switch_misses)
    yield switches
    yield CounterMetricFamily(
        "stretto_plans_failed", "Times that there was no new plan to follow.", value=now.plans_failed
    )
    yield CounterMetricFamily("stretto_policies_made", "Policies made beside the serving.", value=now.policies_made)
    yield CounterMetricFamily(
        "stretto_worker_restarts", "Workers started again after they were lost.", value=now.restarts
    )
    yield CounterMetricFamily(
        "stretto_worker_replacements", "Worker processes replaced because of their memory.", value=now.replaced
    )
    yield from _bad_models(now)


def _bad_models(now: Snapshot) -> Iterator[Any]:
    """What models did wrong; variants that did nothing are left out."""
    labels = ["application", "variant"]
    failed = CounterMetricFamily("stretto_variant_failed_queries", "Queries that a model failed on.", labels=labels)
    losses = CounterMetricFamily("stretto_variant_lost_workers", "Workers that a model took down.", labels=labels)
    times = CounterMetricFamily("stretto_variant_quarantines", "Times that a model was set aside.", labels=labels)
    set_aside = GaugeMetricFamily(
        "stretto_variant_quarantined", "1: set aside at present, and what for.", labels=[*labels, "reason"]
    )
    for variant in now.variants:
        label = [variant.application, variant.name]
        for family, count in ((failed, variant.failed), (losses, variant.losses), (times, variant.times_set_aside)):
            if count:
                family.add_metric(label, count)
        if variant.set_aside:
            set_aside.add_metric([*label, variant.set_aside], 1)
    yield from (failed, losses, times, set_aside)
    yield _gauge("stretto_models_on_probation", "Models that are tried before they are served.", now.on_probation)


def _times(now: Snapshot, fronts: Mapping[str, FrontCounts]) -> Iterator[Any]:
    stages = HistogramMetricFamily(
        "stretto_latency_seconds", "Time of answered queries, by stage.", labels=["application", "stage"]
    )
    slack = HistogramMetricFamily(
        "stretto_slack_seconds", "Left until the deadline when the answer was ready.", labels=["application"]
    )
    sizes = HistogramMetricFamily("stretto_batch_size", "Queries of a batch.", labels=["application"])
    for state in sorted(now.applications, key=lambda state: state.name):
        for stage, times in state.stages.items():
            buckets = _buckets(times, tuple(edge / 1e9 for edge in times.edges))
            if stage == "slack":  # without a sum: it may fall, and a counter must not
                slack.add_metric([state.name], buckets, None)
            else:
                stages.add_metric([state.name, stage], buckets, times.sum / 1e9)
        if state.batch_sizes is not None:
            sizes.add_metric([state.name], _buckets(state.batch_sizes, state.batch_sizes.edges), state.batch_sizes.sum)
    yield stages
    yield slack
    yield sizes
    if now.planning is not None:
        planning = HistogramMetricFamily("stretto_planning_seconds", "From asking the planner to following its plan.")
        planning.add_metric([], *_seconds(now.planning))
        yield planning
    if now.loop_lag is not None:
        lag = HistogramMetricFamily(
            "stretto_loop_lag_seconds",
            "How long the event loop was held, looked at every 10 ms.",
            labels=[FRONT_END] if fronts else [],
        )
        lag.add_metric([""] if fronts else [], *_seconds(now.loop_lag))
        for number, counts in fronts.items():
            if len(counts.lag) == len(now.loop_lag.counts):
                lag.add_metric([number], *_seconds(replace(now.loop_lag, counts=counts.lag, sum=counts.lag_sum)))
        yield lag


def _state(now: Snapshot) -> Iterator[Any]:
    rates = GaugeMetricFamily("stretto_arrival_rate", "λ, queries per second.", labels=["application"])
    for state in now.applications:
        rates.add_metric([state.name], state.rate)
    yield rates
    waiting = GaugeMetricFamily("stretto_queue_depth", "Queries waiting in a lane.", labels=["lane"])
    doors = GaugeMetricFamily(
        "stretto_queue_capacity", "Queries that may wait in a lane (of one variant: wait or run).", labels=["lane"]
    )
    for lane in now.lanes:
        waiting.add_metric([lane.name], lane.length)
        doors.add_metric([lane.name], lane.capacity)
    yield waiting
    yield doors
    yield _gauge("stretto_queries_running", "Queries in a running batch.", now.running)
    yield _gauge("stretto_workers_ready", "Workers that can serve.", sum(slot.is_present for slot in now.slots))
    yield _gauge("stretto_clients", "Identities that asked lately, once for each application.", now.client_count)
    if now.recording is not None:
        yield _gauge("stretto_recording", "1 while events are recorded, 0 since that stopped.", now.recording.is_active)
        yield CounterMetricFamily(
            "stretto_recorded_bytes", "Bytes of events written.", value=now.recording.written_bytes
        )
    yield _gauge("stretto_policies_waiting", "Policies asked for and not there yet.", now.policies_waiting)
    busy = CounterMetricFamily(
        "stretto_worker_busy_seconds", "Time that a worker was given batches for.", labels=["worker", "kind"]
    )
    for slot in now.slots:
        busy.add_metric([slot.name, slot.kind], slot.busy_ns / 1e9)
    yield busy
    delays = GaugeMetricFamily("stretto_delay_seconds", "Delays that plans reckon with.", labels=["delay"])
    delays.add_metric(["handoff"], now.delays.control_ns / 1e9)
    delays.add_metric(["timer"], now.delays.timer_ns / 1e9)
    delays.add_metric(["loop"], now.loop_lag_ns / 1e9)
    yield delays
    ratios = GaugeMetricFamily(
        "stretto_latency_ratio", "Measured over profiled latency.", labels=["application", "variant"]
    )
    for variant in now.variants:
        if variant.latency_ratio is not None:
            ratios.add_metric([variant.application, variant.name], variant.latency_ratio)
    yield ratios


def _seconds(measured: Distribution) -> tuple[list[tuple[str, float]], float]:
    """Buckets and sum of what was measured in nanoseconds."""
    return _buckets(measured, tuple(edge / 1e9 for edge in measured.edges)), measured.sum / 1e9


def _scaling(scaling: Scaling) -> Iterator[Any]:
    advice = scaling.advice
    wanted = GaugeMetricFamily("stretto_workers_wanted", "Workers that there should be.", labels=["kind"])
    starting = GaugeMetricFamily("stretto_workers_starting", "Of them, not there yet.", labels=["kind"])
    for kind, count in advice.wanted.items():
        wanted.add_metric([kind], count)
        starting.add_metric([kind], advice.starting[kind])
    yield wanted
    yield starting
    yield _gauge("stretto_workers_cost_per_hour", "What the workers that there should be cost.", advice.cost)
    yield _gauge("stretto_autoscale_bad_rate", "Queries without an answer on time, last period.", advice.bad_rate)
    yield _gauge("stretto_autoscale_idle_share", "Worker time without work, last period.", advice.idle_share)
    yield CounterMetricFamily("stretto_autoscale_changes", "Times that another number was wanted.", scaling.changes)
    yield CounterMetricFamily("stretto_autoscale_failures", "Times that it could not be had.", scaling.failures)
    if scaling.judged is not None:
        enough = "Workers that the best judged plan needs."
        judged = GaugeMetricFamily("stretto_workers_judged", enough, labels=["kind"])
        for kind, count in scaling.judged.wanted.items():
            judged.add_metric([kind], count)
        yield judged
        yield _gauge("stretto_workers_judged_cost_per_hour", "What these cost.", scaling.judged.cost)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _buckets(times: Distribution, edges: tuple[float, ...]) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for edge, count in zip((*edges, float("inf")), times.counts, strict=True):
        total += count
        buckets.append(("+Inf" if edge == float("inf") else f"{edge:g}", total))
    return buckets
