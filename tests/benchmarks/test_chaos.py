"""The parts of serve_chaos that its claims rest on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos.healthy import NEVER_MS, Measured
from benchmarks.chaos.http2 import Call
from benchmarks.chaos.server import small_disk
from benchmarks.chaos.watch import imbalance
from benchmarks.small_models import BAD, MODULE, write_application
from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.client.load import LoadOutcome
from stretto.repository.read import read_repository
from tests.api.grpc.running import raw_request, run, served

MS = 1_000_000


def test_a_call_by_hand_is_answered() -> None:
    """Larger than any window that a server gives at first."""

    async def scenario() -> None:
        async with served() as client:
            host, _, port = client.address.rpartition(":")
            request = raw_request(np.ones((1, 2), np.float32))
            request.raw_input_contents[0] = bytes(2_000_000)  # refused, once it has come
            message = memoryview(request.SerializeToString())
            call = Call(host, int(port), "/inference.GRPCInferenceService/ModelInfer", message)
            assert await call.run(10.0)
            assert call.sent == len(message)
            nobody = Call(host, 1, "/", message)
            assert not await nobody.run(1.0)

    run(scenario())


def test_requests_without_an_answer_count_as_endless() -> None:
    outcome = np.array([LoadOutcome.ON_TIME] * 98 + [LoadOutcome.LATE, LoadOutcome.NO_ANSWER], np.uint8)
    measured = Measured(np.arange(100) * MS, np.full(100, 5 * MS), outcome, 100.0)
    seen = measured.within([(0, 100 * MS)])
    assert seen["requests"] == 100 and seen["on_time_share"] == 0.98 and seen["late_share"] == 0.01
    assert seen["p99_ms"] > 100 and seen["ends"] == {"on_time": 98, "late": 1, "no_answer": 1}
    assert measured.within([(0, 10 * MS), (20 * MS, 30 * MS)])["p99_ms"] == 5
    assert measured.within([])["p99_ms"] == NEVER_MS, "nothing measured is nothing shown"


def test_counts_that_disagree_are_seen() -> None:
    counts = {"stretto_queries_submitted_total": 10.0, "stretto_queries_ended_total": 7.0}
    assert imbalance(counts | {"stretto_queue_depth": 2.0, "stretto_queries_running": 1.0}) == 0
    assert imbalance(counts | {"stretto_queue_depth": 2.0}) == 1


def test_a_small_disk_is_filled_to_the_last_byte() -> None:
    with small_disk() as disk:
        if not disk.is_small:
            pytest.skip("mounting a small disk needs root")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "one").write_bytes(b"x" * 5000)
        disk.empty()
        (disk.folder / "one").write_bytes(b"x" * 5000)


def test_models_do_what_they_are_called(tmp_path: Path) -> None:
    for behaviour in BAD.values():
        compile(MODULE.format(load=behaviour.load, run=behaviour.run), "model.py", "exec")
    for name in ("raises_at_load", "raises_at_run"):
        write_application(tmp_path, name, BAD[name])
    write_application(tmp_path, "good")
    repository = read_repository(tmp_path)
    deployment, warnings = repository.deployment(1)
    assert len(deployment.applications) == 3 and not warnings
    good = repository.application("good")
    model = load_model(model_source(good, good.variants[0]))
    batch = {"input": np.arange(8, dtype=np.float32).reshape(2, 4)}
    assert model.run(batch)["scores"].tolist() == [[0, 1, 2], [4, 5, 6]]
    bad = repository.application("raises_at_load")
    with pytest.raises(Exception, match="does not want to"):
        load_model(model_source(bad, bad.variants[0]))
    bad = repository.application("raises_at_run")
    with pytest.raises(Exception, match="does not want to"):
        load_model(model_source(bad, bad.variants[0])).run(batch)


def test_slow_bodies_stop_where_they_are_told(tmp_path: Path) -> None:
    """A server that reads everything must not be sent more than the limit, or the benchmark would end the machine."""
    from benchmarks.chaos.attackers import attack

    async def scenario() -> None:
        received = 0

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            while part := await reader.read(65_536):
                received += len(part)
            writer.close()

        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        done = await attack("slow_bodies", "127.0.0.1", port, 20, 1.0, 100_000)
        server.close()
        assert done.most_open == 20 and done.sent_bytes == 100_000
        assert received <= 100_000 + 20 * 200, "and the heads of the requests"

    run(scenario())
