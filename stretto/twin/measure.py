"""Settings from three places: the event log of a server, a scenario, and the telemetry of a server that runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.fleet import Fleet
from stretto.core.plan import Delays
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.telemetry import Telemetry
from stretto.sim.arrivals import ARRIVAL, Source
from stretto.sim.event_log import event_lines
from stretto.sim.network.clients import NetworkClient
from stretto.sim.query_log import UNSAID, QueryLog
from stretto.sim.residuals import BUCKETS, Measured, Residuals, batches_of_bucket
from stretto.sim.service import Deterministic, Empirical, Lognormal, Service
from stretto.sim.traces import MAX_ROWS
from stretto.twin.clients import MOST_CLIENTS, conditions_of
from stretto.twin.log import LogListener
from stretto.twin.recent import Recent
from stretto.twin.setting import Setting, ladders_of
from stretto.twin.stretch import MOST_REQUESTS, REQUEST, ArrivalStretch

SCENARIO_QUERIES = 2_000_000  # that are drawn to see what a scenario's load is like
LAW_POINTS = 255  # of a stated service law
BITS_PER_BYTE = 8
Floats = NDArray[np.float64]


def setting_from_log(path: Path, progress: Callable[[float], None] | None = None) -> Setting:
    """What a server recorded (core/journal.py); StrettoError where the file is no event log."""
    return _heard(path, LogListener(), progress)


@dataclass(frozen=True, eq=False)
class Recording:
    """What a server recorded: what it served at the end, all queries of that, and the conditions."""

    deployment: Deployment
    queries: QueryLog
    setting: Setting


def recording_of(path: Path, progress: Callable[[float], None] | None = None) -> Recording:
    """Returns a server's event log with every query in it; StrettoError where it has none."""
    names: dict[str, int] = {}
    columns = {name: array("q") for name in ("time_ns", "deadline_ns", "application")}

    def hear(application: str, now_ns: int, slack_ns: int) -> None:
        if len(columns["time_ns"]) == MAX_ROWS:
            raise StrettoError(f"{path.name} holds more than {MAX_ROWS:,} queries; record for a shorter time")
        columns["time_ns"].append(now_ns)
        columns["deadline_ns"].append(max(slack_ns, 0))
        columns["application"].append(names.setdefault(application, len(names)))

    listener = LogListener(hear)
    setting = _heard(path, listener, progress)
    deployment = listener.deployment
    assert deployment is not None
    served = {application.name for application in deployment.applications}
    count = len(columns["time_ns"])
    rows = np.zeros(count, ARRIVAL)
    rows["client"] = rows["query_class"] = UNSAID
    for name, column in columns.items():
        rows[name] = column
    is_served = np.array([name in served for name in names], np.bool_)
    rows = rows[is_served[rows["application"]]] if count else rows
    if not len(rows):
        raise StrettoError(f"{path.name} tells of no query; record a server while it is asked")
    rows["time_ns"] -= rows["time_ns"].min()
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    return Recording(deployment, QueryLog(path.name, tuple(names), rows, np.arange(len(rows))), setting)


def _heard(path: Path, listener: LogListener, progress: Callable[[float], None] | None) -> Setting:
    for heard, line in enumerate(event_lines(path), 1):
        with line.explained():
            listener.hear(line.content)
        if progress is not None and heard % 1000 == 0:
            progress(line.share)
    if listener.deployment is None:
        raise StrettoError(f"{path.name} tells of no deployment; the server ended before it served")
    return listener.setting()


def setting_from_telemetry(
    deployment: Deployment,
    telemetry: Telemetry,
    recent: Recent | None = None,
    *,
    before: Telemetry | None = None,
    delays: Delays | None = None,
    clients: Sequence[Client] = (),
) -> Setting:
    """Of a server that runs. Where `recent` heard nothing, counted rates (since `before`, where there is an earlier
    reading) and corrected latencies have to do.
    """
    listener = recent or Recent(telemetry.now_ns)
    present = Fleet(deployment.workers, tuple(bool(is_there) for is_there in telemetry.worker_alive)).counts()
    heard = listener.setting(telemetry.now_ns, deployment, delays=delays, present=present)
    rates = telemetry.rates if before is None else telemetry.rates_since(before)
    arrivals = dict(heard.arrivals)
    for number, application in enumerate(deployment.applications):
        if not listener.has_arrivals(application.name):
            arrivals[application.name] = ArrivalStretch(float(rates[number]))
    residuals = dict(heard.residuals)
    row = deployment.quantile if heard.row is None else heard.row
    for variant, kinds in enumerate(telemetry.is_measured):
        for place in np.flatnonzero(kinds):
            where = (deployment.variant_label(variant), deployment.kinds[int(place)])
            profile = deployment.variants[variant].profile_on(where[1])
            if where not in residuals and profile is not None:
                # The correction follows the quantile that decisions rest on; the whole profile is moved with it.
                ratio = float(telemetry.latency_ratio[variant, place])
                residuals[where] = profiled_residuals(profile, row, ratio)
    networks = dict(heard.networks)
    for client in clients:
        if client.network.bytes_per_s is not None and client.slot not in networks:
            networks[client.slot] = (client.network.bytes_per_s * BITS_PER_BYTE / 1e6,)
    return Setting(
        arrivals,
        residuals,
        heard.delays,
        present,
        heard.handoff_ns,
        heard.overrun_ns,
        dict(sorted(networks.items())),
        heard.row,
        heard.clients,
        ladders=heard.ladders,
        evidence=heard.evidence,
    )


def setting_from_scenario(
    deployment: Deployment,
    source: Source,
    service: Service,
    delays: Delays,
    *,
    seconds: float,
    seed: int = 1,
    clients: Sequence[NetworkClient] = (),
) -> Setting:
    """What a scenario states: its load is drawn and its service law written as residuals."""
    rates = source.expected_rates(deployment, seconds)
    drawn_s = min(seconds, SCENARIO_QUERIES / max(sum(rates), 1e-9))
    queries: list[list[NDArray[np.void]]] = [[] for _ in deployment.applications]
    for chunk in source.chunks(deployment, drawn_s, seed):
        by_application = chunk[np.argsort(chunk["application"], kind="stable")]
        ends = np.searchsorted(by_application["application"], np.arange(len(queries)), side="right")
        for parts, part in zip(queries, np.split(by_application, ends[:-1]), strict=True):
            parts.append(part)
    span_ns = round(drawn_s * 1e9)
    arrivals = {
        application.name: _stretch_of_queries(np.concatenate(parts), span_ns) if parts else ArrivalStretch(0.0)
        for application, parts in zip(deployment.applications, queries, strict=True)
    }
    residuals, present = _stated_residuals(deployment, service), Fleet(deployment.workers).counts()
    known = tuple(conditions_of(client, seconds) for client in clients[:MOST_CLIENTS])
    return Setting(arrivals, residuals, delays, present, clients=known, ladders=ladders_of(deployment))


def _stretch_of_queries(queries: NDArray[np.void], span_ns: int) -> ArrivalStretch:
    """The last queries of one application; those that come together and are due together are one request."""
    if not len(queries):
        return ArrivalStretch(0.0)
    known = queries["query_class"][queries["query_class"] >= 0]
    shares = tuple((np.bincount(known) / len(queries)).tolist()) if len(known) else ()
    alike = np.ones(len(queries), bool)
    for name in ("time_ns", "deadline_ns", "client", "priority"):
        alike[1:] &= queries[name][1:] == queries[name][:-1]
    alike[0] = False
    first = np.flatnonzero(~alike)
    requests = np.zeros(len(first), dtype=REQUEST)
    requests["offset_ns"] = queries["time_ns"][first]
    requests["slack_ns"] = np.maximum(queries["deadline_ns"] - queries["time_ns"], 0)[first]
    requests["rows"] = np.diff(np.append(first, len(queries)))
    requests["client"], requests["priority"] = queries["client"][first], queries["priority"][first]
    if len(requests) > MOST_REQUESTS:
        start_ns = int(requests["offset_ns"][-MOST_REQUESTS - 1])
        requests = requests[-MOST_REQUESTS:]
        requests["offset_ns"] -= start_ns
        span_ns -= start_ns
    return ArrivalStretch.of(requests, span_ns, shares)


def _stated_residuals(deployment: Deployment, service: Service) -> dict[tuple[str, str], Residuals]:
    if isinstance(service, Measured):
        return dict(service.residuals)
    residuals = {}
    for number, variant in enumerate(deployment.variants):
        for kind in deployment.kinds:
            profile = variant.profile_on(kind)
            if profile is not None:
                where = (deployment.variant_label(number), kind)
                residuals[where] = _stated_law(service, profile, deployment.quantile)
    return residuals


def _stated_law(service: Service, profile: LatencyProfile, quantile: Quantile) -> Residuals:
    match service:
        case Lognormal(cv):
            sigma = float(np.sqrt(np.log1p(cv * cv)))
            normal = NormalDist()
            points = np.array([normal.inv_cdf((point + 0.5) / LAW_POINTS) for point in range(LAW_POINTS)])
            ratios = np.exp(sigma * points)
            return _around_mean(profile, quantile, ratios / ratios.mean())
        case Empirical(ratios) if ratios:
            return _around_mean(profile, quantile, np.array(ratios))
        case Deterministic(stated):
            row = profile.table_ns[quantile if stated is None else stated].astype(np.float64)
            return Residuals(_by_bucket(profile, quantile, lambda batch: np.array([row[batch]])))
        case _:
            return profiled_residuals(profile, quantile)


def _around_mean(profile: LatencyProfile, quantile: Quantile, ratios: Floats) -> Residuals:
    """A law that is stated as ratios to the profile's mean."""
    return Residuals(_by_bucket(profile, quantile, lambda batch: ratios * profile.latency_ns(batch, Quantile.MEAN)))


def profiled_residuals(profile: LatencyProfile, quantile: Quantile, scale: float = 1.0) -> Residuals:
    """The spread that a profile itself states, as the simulator draws it between p50, p95 and p99; `scale` times."""
    table = profile.table_ns.astype(np.float64) * scale
    chance = (np.arange(LAW_POINTS) + 0.5) / LAW_POINTS

    def drawn(batch: int) -> Floats:
        p50, p95, p99 = np.maximum.accumulate(table[Quantile.P50 :, batch])
        least = max(0.5 * p50, 2.0 * p50 - p95)
        return np.interp(chance, (0.0, 0.5, 0.95, 0.99, 1.0), (least, p50, p95, p99, p99 + (p99 - p95) / 4))

    return Residuals(_by_bucket(profile, quantile, drawn))


def _by_bucket(profile: LatencyProfile, quantile: Quantile, times_ns: Callable[[int], Floats]) -> dict[int, Floats]:
    """Ratios to what decisions rest on; the smallest, middle and largest batch stand for their bucket."""
    samples = {}
    for bucket in range(BUCKETS):
        low, high = batches_of_bucket(bucket)
        high = min(high, profile.max_batch)
        if low <= high:
            batches = sorted({low, (low + high) // 2, high})
            parts = [times_ns(batch) / profile.latency_ns(batch, quantile) for batch in batches]
            sample = np.concatenate(parts)
            samples[bucket] = np.repeat(sample, -(-30 // len(sample)))  # enough to speak for itself
    return samples
