"""The text of /metrics: it is what Prometheus reads, and its counts are those of the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stretto.api.metrics import Metrics
from tests.api.serving import PINNED, GoodQueries, Running, images, json_body, message

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(server: Running) -> Samples:
    reply = server.ask("GET", "/metrics", name="management")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(reply.body.decode()))
    assert all(family.documentation and family.type != "untyped" for family in families)
    names = [family.name for family in families]
    assert len(names) == len(set(names)) and all(name.startswith("stretto_") for name in names)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for (found, its), value in samples.items() if found == name and set(labels.items()) <= set(its))


def assert_conserved(samples: Samples) -> None:
    submitted = total(samples, "stretto_queries_submitted_total")
    ended = total(samples, "stretto_queries_ended_total")
    open_now = total(samples, "stretto_queue_depth") + total(samples, "stretto_queries_running")
    assert submitted == ended + open_now


def test_the_loop_goes_on_while_metrics_are_written(server: Running) -> None:
    """It stood still for as long as that takes, tens of milliseconds, at every look of a collector."""

    async def turns() -> int:
        writing, count = asyncio.ensure_future(Metrics(server.plane).text()), 0
        while not writing.done():
            await asyncio.sleep(0)
            count += 1
        assert b"stretto_queries_submitted_total" in writing.result()
        return count

    assert server.run(turns()) > 1


def test_no_counter_falls_when_what_is_served_changes(repository: Path) -> None:
    """Workers' busy time began at zero with every generation, which a collector takes for a restart."""
    busy = "stretto_worker_busy_seconds_total"
    with Running(repository) as server, GoodQueries(server) as good:
        first = before = read(server)
        for what in ("unload", "load", "unload", "load"):
            enough = good.answered + 5
            server.wait_until(lambda enough=enough: good.answered > enough, "traffic")
            before, generation = read(server), server.plane.service.engine.generation
            assert server.ask("POST", f"/v2/repository/models/mnist/{what}", name="management").status == 200
            assert server.plane.service.engine.generation is not generation
            after = read(server)
            counters = {key: value for key, value in before.items() if key[0].endswith(("_total", "_count", "_sum"))}
            assert {key: value for key, value in counters.items() if after[key] < value} == {}
        assert total(before, busy) > total(first, busy)


def test_every_query_is_in_one_count(server: Running) -> None:
    before = read(server)
    assert_conserved(before)
    with server.gate, server.wire() as one, server.wire() as other:
        one.send(message("POST", PINNED, json_body(images(5))))
        server.wait_for_queries(5)
        other.send(message("POST", PINNED, json_body(images(20))))
        server.wait_for_queries(25)
        during = read(server)
        assert_conserved(during)
        assert total(during, "stretto_requests_open") == 2
        other.socket.close()
        server.wait_until(lambda: server.plane.open_requests == 1, "the other is gone")
        assert_conserved(read(server))
        server.gate.is_open.set()
        reply = one.reply()
        assert reply.status == 200
    server.wait_for_queries(0)
    after = read(server)
    assert_conserved(after)

    def grew(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert grew("stretto_queries_submitted_total", application="fashion") == 25
    assert grew("stretto_queries_ended_total", outcome="on_time") == 5
    assert grew("stretto_queries_ended_total", outcome="dropped", reason="cancelled") == 20
    assert grew("stretto_variant_queries_total", variant="linear") >= 5
    accuracy = reply.content["parameters"]["expected_accuracy"]
    assert grew("stretto_utility_total", application="fashion") == pytest.approx(5 * accuracy), (
        "answers on time keep all they are worth"
    )
    assert grew("stretto_latency_seconds_count", application="fashion", stage="total") == 5
    assert grew("stretto_slack_seconds_bucket", application="fashion", le="+Inf") == 5
    assert grew("stretto_queries_submitted_total", application="mnist") == 0
    assert total(after, "stretto_workers_ready") == 1
    assert total(after, "stretto_requests_open") == 0


def test_refusals(server: Running) -> None:
    before = read(server)
    for body in (b"{}", b"no", json_body(images(33))):
        assert server.ask("POST", PINNED, body).status in (400, 413)
    assert server.ask("POST", "/v2/models/none/infer", json_body(images())).status == 404
    assert server.ask("POST", PINNED, bytes(17_000_000)).status == 413
    after = read(server)
    for reason, count in (("bad_request", 4), ("not_found", 1)):
        grown = total(after, "stretto_requests_refused_total", reason=reason)
        assert grown - total(before, "stretto_requests_refused_total", reason=reason) == count


def test_histograms_are_cumulative(server: Running) -> None:
    assert server.ask("POST", PINNED, json_body(images())).status == 200
    samples = read(server)
    for name in ("stretto_latency_seconds", "stretto_slack_seconds", "stretto_batch_size"):
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for (found, labels), value in samples.items():
            if found == f"{name}_bucket":
                rest = tuple(item for item in labels if item[0] != "le")
                series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        assert series
        for labels, buckets in series.items():
            counts = [count for _, count in sorted(buckets)]
            assert counts == sorted(counts)
            if name != "stretto_slack_seconds":  # whose sum may fall, so that it has none, nor a count
                assert counts[-1] == samples[(f"{name}_count", labels)]
