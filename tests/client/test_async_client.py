"""AsyncClient against a real server; what it shares with Client is tested there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from stretto.client import AsyncClient, BadAnswer, BadRequest, ConnectionFailed, Expired, NotFound, Overloaded
from tests.client.server import Server

BEE = [0.25, 0.5, 0.125, 0.0]


def with_client(server: Server, work: Callable[[AsyncClient], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, **options) as client, asyncio.timeout(15):  # type: ignore[arg-type]
            await work(client)

    asyncio.run(run())


async def acquired(semaphore: object) -> bool:
    return await asyncio.to_thread(semaphore.acquire, timeout=5)  # type: ignore[attr-defined]


def test_queries_and_their_answers(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        answer = await client.infer("rows", BEE, deadline_ms=50, id="q", version="fast")
        assert answer.output.tolist() == [[0.25, 0.5, 0.125]] and (answer.id, answer.variant) == ("q", "fast")
        queries = np.random.default_rng(1).random((40, 4)).astype(np.float32)
        answers = await asyncio.gather(*(client.infer("rows", query) for query in queries))
        assert all((answer.output == query[:3]).all() for answer, query in zip(answers, queries, strict=True))
        assert await client.live() and await client.ready("rows")
        assert (await client.metadata("rows"))["versions"] == ["fast", "good"]
        assert await client.statistics("rows") == {"model_stats": []}
        with pytest.raises(NotFound):
            await client.ready("other")

    with_client(server, work, max_connections=8)
    assert server.rules.connections <= 8


def test_refusals(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        server.rules.refuse = "overloaded"
        with pytest.raises(Overloaded) as caught:
            await client.infer("rows", BEE)
        assert (caught.value.retry_after_s, caught.value.status) == (2, 429)
        server.rules.refuse = "unavailable"
        assert not await client.ready()
        server.rules.refuse = "bad_request"
        with pytest.raises(BadRequest):
            await client.infer("rows", BEE)

    with_client(server, work)
    assert server.rules.connections == 1 and server.rules.paths.count("/v2/models/rows") == 1


def test_cancelling_closes_the_connection_and_only_that_one(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        await client.infer("rows", BEE)
        server.rules.holds = True
        held = asyncio.create_task(client.infer("rows", BEE))
        assert await acquired(server.rules.held)
        server.rules.holds = False
        await client.infer("rows", BEE)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert await acquired(server.rules.left)
        await client.infer("rows", BEE)
        assert server.rules.connections == 2

    with_client(server, work)


def test_an_answer_that_does_not_come_is_given_up(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        server.rules.holds = True
        with pytest.raises(Expired, match="stopped waiting"):
            await client.infer("rows", BEE, deadline_ms=20)
        assert await acquired(server.rules.left)

    with_client(server, work, grace_ms=30)


def test_stale_and_broken_connections(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        await client.infer("rows", BEE)
        server.rules.closes = 1
        await client.infer("rows", BEE)
        assert server.rules.connections == 2
        server.rules.closes = 2
        with pytest.raises(ConnectionFailed, match="broke"):
            await client.infer("rows", BEE)
        assert server.rules.closes == 0

    with_client(server, work)


def test_what_is_no_answer(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        server.rules.body = bytes(3_000)
        with pytest.raises(BadAnswer, match="larger than"):
            await client.infer("rows", BEE)
        server.rules.body = None
        await client.infer("rows", BEE)

    with_client(server, work, max_answer_bytes=2_000)


def test_closing_ends_what_waits(server: Server) -> None:
    async def work(client: AsyncClient) -> None:
        await client.infer("rows", BEE)
        server.rules.holds = True
        waiting = asyncio.create_task(client.infer("rows", BEE))
        assert await acquired(server.rules.held)
        await client.close()
        with pytest.raises(ConnectionFailed):
            await waiting
        assert not await client.live()
        with pytest.raises(ConnectionFailed, match="closed"):
            await client.metadata()

    with_client(server, work)


def test_no_server() -> None:
    async def run() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            async with AsyncClient(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
                assert not await client.live()
                with pytest.raises(ConnectionFailed, match="cannot be reached"):
                    await client.metadata()

    asyncio.run(run())
