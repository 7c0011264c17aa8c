"""[cluster], [[application]] and [zoo]: the applications and workers of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from stretto.config.fields import Fields, shown, suggestion
from stretto.core.application import Application, Penalty, Variant, check_name
from stretto.core.deployment import MAX_WORKERS, Deployment
from stretto.core.errors import StrettoError
from stretto.core.instances import Names, check_names, with_instances
from stretto.core.profile import MAX_BATCH_LIMIT, MAX_LATENCY_MS, NS_PER_MS, LatencyProfile, Quantile
from stretto.core.published import TABLES, PublishedModel, published_model, published_table
from stretto.core.worker import UNLIMITED_MEMORY, Worker

MAX_APPLICATIONS = 10_000
MAX_MEMORY_MB = 1e9
MAX_SLO_MS = 3_600_000.0
BYTES_PER_MB = 1_000_000
MAX_FRAME_BYTES, MAX_SIDE = 1 << 30, 1 << 20
DEFAULT_MAX_BATCH = 256
LATENCY_KEYS = ("alpha_ms", "beta_ms", "published", "measured")
QUANTILES = tuple(quantile.name.lower() for quantile in Quantile)


def read_deployment(top: Fields, quantile: Quantile) -> Deployment:
    """Everything that is served and everything that serves."""
    workers, groups = _cluster(top)
    kinds = tuple(dict.fromkeys(worker.kind for worker in workers))
    applications = _applications(top, kinds)
    labels = [f"{application.name}/{variant.name}" for application in applications for variant in application.variants]
    for group, names, _ in groups:
        with group.at("variants"):
            check_names(names, labels)
    with top.at("application" if top.has("application") else "zoo"):
        names_of = [names for _, names, count in groups for _ in range(count)]
        return with_instances(Deployment(applications, workers, quantile), names_of)


def _cluster(top: Fields) -> tuple[tuple[Worker, ...], list[tuple[Fields, Names, int]]]:
    """The workers, and their groups, each with the names of the only variants that it runs and how many they are."""
    cluster = top.part("cluster")
    if cluster is None:
        top.fail("there is no [cluster]; add one with workers = 8, say")
    groups = cluster.parts("group")
    if groups and cluster.has("workers"):
        cluster.fail("give either workers or [[cluster.group]], not both", "workers")
    workers: list[Worker] = []
    named: list[tuple[Fields, Names, int]] = []
    numbers: dict[str, int] = {}
    for group in groups or [cluster]:
        count = group.integer("count" if groups else "workers", 1, MAX_WORKERS)
        kind = group.text("kind", "default")
        memory_mb = group.optional_number("memory_mb", 0, MAX_MEMORY_MB, above=True)
        resident = group.texts("resident") if group.has("resident") else None
        named.append((group, group.texts("variants"), count))
        group.done()
        if len(workers) + count > MAX_WORKERS:
            group.fail(f"the groups have more than {MAX_WORKERS} workers together", "count")
        memory = UNLIMITED_MEMORY if memory_mb is None else max(1, round(memory_mb * BYTES_PER_MB))
        first = numbers.get(kind, 0)
        with group.at("kind"):
            workers.extend(Worker(f"{kind}-{first + number}", kind, memory, resident) for number in range(count))
        numbers[kind] = first + count
    cluster.done()
    return tuple(workers), named


def _applications(top: Fields, kinds: tuple[str, ...]) -> tuple[Application, ...]:
    applications: list[Application] = []
    names: set[str] = set()
    for fields in top.parts("application"):
        for application in _replicas(fields, kinds, MAX_APPLICATIONS - len(applications)):
            if application.name in names:
                fields.fail(f"there are two applications named {application.name}; rename one", "name")
            names.add(application.name)
            applications.append(application)
    zoo = top.part("zoo")
    if zoo is not None:
        for application in _zoo(zoo, kinds):
            if application.name in names:
                zoo.fail(f"the table has an application {application.name} and so has [[application]]", "table")
            applications.append(application)
    if not applications:
        top.fail("there is no application; add an [[application]] or a [zoo]")
    return tuple(applications)


def _replicas(fields: Fields, kinds: tuple[str, ...], room: int) -> list[Application]:
    """`count` equal applications name-0, name-1, …; one keeps its plain name where no count is given."""
    name = fields.text("name")
    with fields.at("name"):
        check_name("application", name)
    count = fields.optional_integer("count", 1, MAX_APPLICATIONS)
    if (count or 1) > room:
        fields.fail(f"a scenario holds at most {MAX_APPLICATIONS} applications", "count")
    parts = fields.parts("variant")
    if not parts:
        fields.fail(f"application {name} has no variant; add an [[application.variant]]")
    variants = tuple(_variant(part, kinds) for part in parts)
    slo_ms = fields.optional_number("slo_ms", 0, MAX_SLO_MS, above=True)
    if slo_ms is None:
        published = next((part.table["published"] for part in parts if "published" in part.table), None)
        if published is None:
            fields.fail(f"application {name} needs slo_ms")
        slo_ms = published_model(published).slo_ms
    fields.part("evidence")  # which is read when all applications are
    penalty = Penalty[fields.choice("penalty", [rule.name.lower() for rule in Penalty], "step").upper()]
    fields.done()
    with fields.at():
        return [
            Application(replica, max(1, round(slo_ms * NS_PER_MS)), variants, penalty)
            for replica in ([name] if count is None else [f"{name}-{number}" for number in range(count)])
        ]


def _variant(fields: Fields, kinds: tuple[str, ...]) -> Variant:
    """Its own latency holds on every kind of worker that has no table of its own under `on`."""
    default_name = str(fields.table.get("published", "")).partition(":")[2] or None
    name = fields.text("name", default_name)
    accuracy = fields.number("accuracy", 0, 1, 1.0)
    memory_mb = fields.number("memory_mb", 0, MAX_MEMORY_MB, 0.0)
    load_ms = fields.number("load_ms", 0, MAX_LATENCY_MS, 0.0)
    frame_bytes = fields.integer("frame_bytes", 0, MAX_FRAME_BYTES, 0)
    recall = fields.numbers("recall", 0, 1) if fields.has("recall") else ()
    input_size = tuple(map(int, fields.numbers("input_size", 1, MAX_SIDE))) if fields.has("input_size") else ()
    profiles: dict[str, LatencyProfile] = {}
    on = fields.part("on")
    if on is not None:
        for kind in on.table:
            part = on.part(kind)
            assert part is not None
            if kind not in kinds:
                on.fail(f"the cluster has no worker of kind {shown(kind)}; {suggestion(kind, kinds)}", kind)
            profiles[kind] = _profile(part, kind)
            part.done(LATENCY_KEYS)
    if on is None or any(key in fields.table for key in LATENCY_KEYS):
        plain = _profile(fields, "default")
        for kind in kinds:
            if kind not in profiles:
                profiles[kind] = LatencyProfile(plain.table_ns, kind)
    elif fields.has("max_batch"):
        fields.fail("max_batch belongs beside a latency; put it under each kind", "max_batch")
    fields.done(LATENCY_KEYS)
    with fields.at("name" if "name" in fields.table else None):
        return Variant(
            name,
            accuracy,
            tuple(profiles.values()),
            memory_bytes=round(memory_mb * BYTES_PER_MB),
            load_ns=round(load_ms * NS_PER_MS),
            recall=tuple(recall),
            input_size=input_size,
            frame_bytes=frame_bytes,
            has_accuracy=fields.has("accuracy"),
        )


def _profile(fields: Fields, kind: str) -> LatencyProfile:
    """From exactly one of: alpha_ms and beta_ms, published, measured."""
    max_batch = fields.optional_integer("max_batch", 1, MAX_BATCH_LIMIT)
    ways = [key for key in ("alpha_ms", "published", "measured") if key in fields.table]
    if len(ways) != 1:
        _ask_for_one_latency(fields, ways)
    with fields.at(ways[0]):
        if fields.has("published"):
            return _published(fields).profile(kind, max_batch or DEFAULT_MAX_BATCH)
        measured = fields.part("measured")
        if measured is not None:
            return LatencyProfile.measured(_points(measured), max_batch, kind)
        alpha_ms = fields.number("alpha_ms", 0, MAX_LATENCY_MS)
        beta_ms = fields.number("beta_ms", 0, MAX_LATENCY_MS)
        return LatencyProfile.linear(alpha_ms, beta_ms, max_batch or DEFAULT_MAX_BATCH, kind)


def _ask_for_one_latency(fields: Fields, ways: Sequence[str]) -> NoReturn:
    if ways:
        fields.fail(f"{ways[0]} and {ways[1]} both give a latency; keep one", ways[1])
    if "beta_ms" in fields.table:
        fields.fail("beta_ms needs alpha_ms beside it", "beta_ms")
    fields.fail("a latency is missing; give alpha_ms and beta_ms, or published, or measured")


def _published(fields: Fields) -> PublishedModel:
    reference = fields.text("published")
    table, _, model = reference.partition(":")
    if table not in TABLES:
        fields.fail(f"there is no published table {shown(table)}; {suggestion(table, TABLES)}", "published")
    try:
        return published_model(reference)
    except StrettoError:
        names = [row.name for row in published_table(table)]
        fields.fail(f"table {table} has no model {shown(model)}; {suggestion(model, names)}", "published")


def _points(measured: Fields) -> dict[int, dict[str, float]]:
    """Batch size → {mean, p50, p95, p99}; TOML keys are text, so the sizes are read back."""
    points: dict[int, dict[str, float]] = {}
    for key in measured.table:
        if not key.isdecimal() or not 1 <= int(key[:6]) <= MAX_BATCH_LIMIT:
            measured.fail(f"{shown(key)} is no batch size; give a whole number from 1 to {MAX_BATCH_LIMIT}", key)
        point = measured.part(key)
        assert point is not None
        points[int(key)] = {
            quantile: point.number(quantile, 0, MAX_LATENCY_MS, above=True)
            for quantile in QUANTILES
            if point.has(quantile)
        }
        point.done()
        if not points[int(key)]:
            measured.fail(f"batch size {key} has no latency; give {', '.join(QUANTILES)} or some of them", key)
    return points


def _zoo(zoo: Fields, kinds: tuple[str, ...]) -> list[Application]:
    """One application per row of a published table, with the table's SLO unless another is given."""
    table = zoo.choice("table", TABLES)
    above = zoo.number("beta_over_alpha_above", 0, 1e9, 0.0)
    below = zoo.number("beta_over_alpha_below", 0, 1e9, 1e9)
    slo_ms = zoo.optional_number("slo_ms", 0, MAX_SLO_MS, above=True)
    max_batch = zoo.integer("max_batch", 1, MAX_BATCH_LIMIT, DEFAULT_MAX_BATCH)
    zoo.done()
    rows = [row for row in published_table(table) if above < row.beta_ms / row.alpha_ms < below]
    if not rows:
        zoo.fail(f"no model of {table} has β/α above {above:g} and below {below:g}", "table")
    return [
        Application(
            row.name,
            round((slo_ms or row.slo_ms) * NS_PER_MS),
            (Variant(row.name, 1.0, tuple(row.profile(kind, max_batch) for kind in kinds), has_accuracy=False),),
        )
        for row in rows
    ]
