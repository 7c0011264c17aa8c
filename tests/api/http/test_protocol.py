"""Connections: keep-alive, pipelines, broken HTTP, slow and lost clients, and what one client may take up."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api import server as listeners
from stretto.api.http.traffic import SWEPT, Traffic
from stretto.api.limits import Limits
from tests.api.serving import INFER, PATIENCE_S, PINNED, Running, binary_body, images, json_body, message, values_of

ONE = json_body(images(), id="one")
LENGTH = "Inference_Header_Content_Length"


def infer_message(id: str, path: str = PINNED, seed: int = 7, **headers: str) -> bytes:
    return message("POST", path, json_body(images(seed=seed), id=id), **headers)


@pytest.fixture(autouse=True)
def known_addresses(server: Running) -> None:
    """Inferences at addresses that were answered before go without a task."""
    for path in (INFER, PINNED):
        assert server.ask("POST", path, ONE).status == 200


def test_keep_alive(server: Running) -> None:
    with server.wire() as wire:
        for number in range(5):
            assert wire.ask("GET", "/v2").status == 200
            assert wire.ask("POST", PINNED, json_body(images(), id=str(number))).content["id"] == str(number)
            assert wire.ask("POST", INFER, b"{}").status == 400
            assert wire.ask("GET", "/nowhere").status == 404


@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
def test_close_when_asked(server: Running, path: str) -> None:
    with server.wire() as wire:
        reply = wire.ask("POST", path, ONE, Connection="close")
        assert reply.status == 200 and reply.headers["connection"] == "close"
        assert wire.is_closed()


@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
def test_http_1_0(server: Running, path: str) -> None:
    with server.wire() as wire:
        wire.send(f"POST {path} HTTP/1.0\r\nContent-Length: {len(ONE)}\r\n\r\n".encode() + ONE)
        assert values_of(wire.reply()).shape == (1, 10)
        assert wire.is_closed()


def test_head(server: Running) -> None:
    with server.wire() as wire:
        whole = wire.ask("GET", "/v2")
        reply = wire.ask("HEAD", "/v2")
        assert reply.status == 200 and int(reply.headers["content-length"]) == len(whole.body)
        assert wire.ask("HEAD", "/v2/models/none").status == 404
        assert wire.ask("HEAD", PINNED).status == 405
        assert wire.ask("GET", "/v2").body == whole.body


def test_expect_100_continue(server: Running) -> None:
    with server.wire() as wire:
        head, _, body = message("POST", PINNED, ONE, Expect="100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert wire.reply().status == 100
        wire.send(body)
        assert values_of(wire.reply()).shape == (1, 10)
        # A refusal comes at once: the body is never asked for.
        wire.send(b"POST " + PINNED.encode() + b" HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert wire.reply().status == 413


@pytest.mark.parametrize("path", [PINNED, PINNED + "/"])
def test_nobody_is_told_to_go_ahead_with_nothing(server: Running, path: str) -> None:
    """Nor is who has sent all of it."""
    with server.wire() as wire:
        wire.send(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n")
        assert wire.reply().status == 400
        wire.send(message("POST", PINNED, ONE, Expect="100-continue"))
        assert values_of(wire.reply()).shape == (1, 10)


def chunked(body: bytes, size: int, path: str = PINNED, **headers: str) -> bytes:
    head = message("GET", path, Transfer_Encoding="chunked", **headers).replace(b"GET", b"POST", 1)
    parts = [body[place : place + size] for place in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
@pytest.mark.parametrize("size", [1, 3, 1000, 10**6])
def test_chunked_bodies(server: Running, path: str, size: int) -> None:
    body, length = binary_body(images())
    with server.wire() as wire:
        expected = values_of(wire.ask("POST", PINNED, ONE))
        wire.send(chunked(body, size, path, **{LENGTH: length}))
        np.testing.assert_allclose(values_of(wire.reply()), expected, rtol=1e-4)
        assert wire.ask("GET", "/v2").status == 200


def test_trailers_say_nothing(server: Running) -> None:
    """A header after the body must not change what the request is."""
    with server.wire() as wire:
        trailer = chunked(ONE, 1000)[:-2] + b"Inference-Header-Content-Length: 5\r\n\r\n"
        wire.send(infer_message("before") + trailer.replace(PINNED.encode(), b"/v2/models/fashion/infer/"))
        assert wire.reply().content["id"] == "before"
        assert wire.reply().content["id"] == "one"


def test_split_at_every_byte(server: Running) -> None:
    small = b'{"inputs": []}'
    for data in (message("POST", PINNED, small), chunked(small, 5), message("GET", "/v2/models/fashion/ready")):
        with server.wire() as wire:
            for place in range(len(data)):
                wire.send(data[place : place + 1])
            whole = wire.reply()
        for place in range(1, len(data), 3):
            with server.wire() as wire:
                wire.send(data[:place])
                wire.send(data[place:])
                assert wire.reply().status == whole.status


# -- pipelines ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_answered_in_order(server: Running) -> None:
    """Those without a task, those with one and errors, mixed. A request behind one without a task took its answer."""
    asked: list[tuple[bytes, int, str]] = []
    for number in range(8):
        asked.append((infer_message(f"direct {number}"), 200, f"direct {number}"))
        asked.append((infer_message(f"task {number}", PINNED + "/"), 200, f"task {number}"))
        asked.append((message("GET", "/v2/models/fashion"), 200, ""))
        asked.append((infer_message(f"again {number}", INFER), 200, f"again {number}"))
        asked.append((message("POST", PINNED, b"no json"), 400, ""))
        asked.append((message("GET", "/nowhere"), 404, ""))
    with server.wire() as wire:
        wire.send(b"".join(data for data, _, _ in asked))
        for _, status, id in asked:
            reply = wire.reply()
            assert reply.status == status
            assert reply.content.get("id", "") == id


def test_a_pipeline_in_pieces(server: Running) -> None:
    """Bodies that arrive while an earlier request is still waiting belong to their own requests."""
    first, second, third = (infer_message(name, seed=seed) for seed, name in enumerate(("first", "second", "third")))
    expected = [values_of(server.ask("POST", PINNED, json_body(images(seed=seed)))) for seed in range(3)]
    data = first + second + third
    for cut in (len(first) + 20, len(first) + 5000, len(first) + len(second) + 300, len(data) - 7):
        with server.wire() as wire, server.gate:
            wire.send(data[:cut])
            server.wait_for_queries(1)
            wire.send(data[cut:])
            server.gate.is_open.set()
            for name, values in zip(("first", "second", "third"), expected, strict=True):
                reply = wire.reply()
                assert reply.content["id"] == name
                np.testing.assert_allclose(values_of(reply), values, rtol=1e-4)


def test_nothing_after_a_last_request(server: Running) -> None:
    before, _ = server.counts()
    with server.wire() as wire:
        wire.send(infer_message("last", Connection="close") + infer_message("too late") * 3)
        assert [reply.content["id"] for reply in wire.replies()] == ["last"]
    with server.wire() as wire:
        wire.send(message("POST", PINNED, b"{}", Connection="close") + infer_message("too late") * 3)
        assert [reply.status for reply in wire.replies()] == [400]
    assert server.counts()[0] == before + 1


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00\x01 garbage\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        chunked(b"abc", 3).replace(b"3\r\n", b"zz\r\n"),
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["garbage", "length", "chunk", "address"],
)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_answers_come_before_the_refusal_of_a_broken_request(server: Running, broken: bytes, before: int) -> None:
    with server.wire() as wire:
        wire.send(b"".join(infer_message(str(number)) for number in range(before)) + broken)
        replies = wire.replies()
    assert [reply.content.get("id") for reply in replies[:-1]] == [str(number) for number in range(before)]
    assert replies[-1].status == 400 and replies[-1].reason == "bad_request"
    assert replies[-1].headers["connection"] == "close"


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_broken_body_is_refused_once(server: Running, is_direct: bool, complaints: list[str]) -> None:
    path = PINNED if is_direct else PINNED + "/"
    with server.wire() as wire:
        wire.send(chunked(b"{}", 2, path)[:-5])
        wire.send(b"not a chunk\r\n")
        assert [reply.status for reply in wire.replies()] == [400]
    with server.wire() as wire:  # answered before the body was read, which then breaks
        wire.send(chunked(b"{}", 2, "/nowhere")[:-5])
        assert wire.reply().status == 404
        wire.send(b"not a chunk\r\n")
        assert wire.is_closed()
    assert not complaints


# -- odd HTTP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: +4",
        "Content-Length: 4, 4",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999999",
        "Content-Length:",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length : 4",
        " folded: 1",
        "X: a\rb",
    ],
)
@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
def test_no_two_ways_to_read_a_request(server: Running, headers: str, path: str, complaints: list[str]) -> None:
    """Where the end of a body can be disputed, a proxy and we could see two different next requests."""
    with server.wire() as wire:
        wire.send(f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n".encode())
        replies = wire.replies()
    assert [reply.status for reply in replies] == [400]
    assert replies[0].reason == "bad_request"
    assert not complaints


@pytest.mark.parametrize(
    "line",
    [
        "CONNECT localhost:80 HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /%zz HTTP/1.1",
        "GET /é HTTP/1.1",
        "GET // HTTP/1.1",
        "GET /v2/models/%00/infer HTTP/1.1",
        "GET /v2/models/%ff%fe/ready HTTP/1.1",
        "GET /v2/models/a%0d%0aX-Bad:%201/ready HTTP/1.1",
        "POST /v2/models//infer HTTP/1.1",
        "POST /v2/models/fashion/versions//infer HTTP/1.1",
        "get /v2 HTTP/1.1",
        "GET /v2 HTTP/9.9",
        "BREW /v2 HTTP/1.1",
    ],
)
def test_odd_addresses(server: Running, line: str, complaints: list[str]) -> None:
    with server.wire() as wire:
        wire.send(line.encode() + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        replies = wire.replies()
    assert len(replies) == 1 and 400 <= replies[0].status < 500
    assert replies[0].reason in ("bad_request", "not_found")
    assert "x-bad" not in replies[0].headers
    assert not complaints


@pytest.mark.parametrize("to", ["websocket", "h2c", "TLS/1.0"])
def test_no_upgrade(server: Running, to: str, complaints: list[str]) -> None:
    """The request is answered as it stands, and so is the next one."""
    upgrade = {"Connection": "Upgrade", "Upgrade": to}
    with server.wire() as wire:
        wire.send(message("GET", "/v2", **upgrade) + infer_message("one", **upgrade) + message("GET", "/v2", **upgrade))
        wire.send(infer_message("two"))
        assert wire.reply().content["name"] == "stretto"
        assert wire.reply().content["id"] == "one"
        assert wire.reply().content["name"] == "stretto"
        assert wire.reply().content["id"] == "two"
    assert not complaints


def test_a_query_string_is_ignored(server: Running) -> None:
    assert values_of(server.ask("POST", PINNED + "?a=b&c", ONE)).shape == (1, 10)


# -- clients that go away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_lost_client_cancels_what_waits_and_what_runs(
    server: Running, path: str, is_reset: bool, complaints: list[str]
) -> None:
    _, before = server.counts()
    with server.gate, server.wire() as running, server.wire() as waiting, server.wire() as staying:
        running.send(infer_message("running", path))
        server.wait_for_queries(1)
        waiting.send(infer_message("waiting", path))
        server.wait_for_queries(2)
        staying.send(infer_message("staying", path))
        server.wait_for_queries(3)
        for left, wire in ((2, waiting), (1, running)):
            if is_reset:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.socket.close()
            server.wait_until(lambda left=left: server.plane.open_requests == left, f"{left} requests are left")
        server.gate.is_open.set()
        assert staying.reply().content["id"] == "staying"
    server.wait_for_queries(0)
    _, after = server.counts()
    assert after["dropped_cancelled"] - before["dropped_cancelled"] == 2
    assert after["on_time"] - before["on_time"] == 1
    assert not complaints


@pytest.mark.parametrize("path", [PINNED, "/v2/models/fashion/versions/linear/infer/"])
def test_a_lost_client_cancels_its_whole_pipeline(server: Running, path: str, complaints: list[str]) -> None:
    submitted, before = server.counts()
    with server.gate:
        with server.wire() as wire:
            wire.send(infer_message("one", path) + infer_message("two") + infer_message("three", path))
            server.wait_for_queries(1)
        server.wait_until(lambda: server.plane.open_requests == 0, "the request is gone")
    server.wait_for_queries(0)
    after_submitted, after = server.counts()
    assert after_submitted - submitted == 1  # the others never began
    assert after["dropped_cancelled"] - before["dropped_cancelled"] == 1
    assert not complaints


def test_a_request_of_many_rows_is_cancelled_whole(server: Running) -> None:
    _, before = server.counts()
    with server.gate:
        with server.wire() as wire:
            wire.send(message("POST", PINNED, json_body(images(8))))
            server.wait_for_queries(8)
        server.wait_until(lambda: server.plane.open_requests == 0, "the request is gone")
    server.wait_for_queries(0)
    assert server.counts()[1]["dropped_cancelled"] - before["dropped_cancelled"] == 8


def test_half_a_request(server: Running, complaints: list[str]) -> None:
    whole = infer_message("half")
    for place in (1, 30, len(whole) // 2, len(whole) - 1):
        for data in (whole[:place], whole.replace(PINNED.encode(), INFER.encode() + b"/")[:place]):
            with server.wire() as wire:
                wire.send(data)
    assert server.ask("GET", "/v2/health/ready").status == 200
    assert not complaints


# -- what one client may take up ---------------------------------------------------------------------------------------


def test_a_large_body_is_refused_and_the_connection_kept(server: Running) -> None:
    limit = server.plane.limits.header_json_bytes + 64 * 32 * 784
    for path in (PINNED, PINNED + "/", "/v2/models/none/infer"):
        with server.wire() as wire:
            reply = wire.ask("POST", path, bytes(limit + 1))
            assert (reply.status, reply.reason) == (404, "not_found") if "none" in path else (413, "bad_request")
            assert wire.ask("GET", "/v2").status == 200
            wire.send(chunked(bytes(limit + 1), 100_000, path))
            assert wire.reply().status == (404 if "none" in path else 413)
            assert wire.ask("POST", PINNED, ONE).content["id"] == "one"


def test_a_refused_body_is_read_before_the_end(server: Running) -> None:
    """A client that is still sending must find the answer, not a broken connection."""
    with server.wire() as wire:
        wire.send(message("POST", PINNED, bytes(20_000_000), Connection="close"))
        assert [reply.status for reply in wire.replies()] == [413]


@pytest.mark.parametrize("where", ["address", "one header", "many headers", "name", "trailer", "chunk extension"])
def test_header_floods(server: Running, where: str) -> None:
    """The parser holds a header until it is complete: one without an end would fill the memory."""
    start = {
        "address": b"GET /",
        "one header": b"GET / HTTP/1.1\r\nX: ",
        "many headers": b"GET / HTTP/1.1\r\n",
        "name": b"GET / HTTP/1.1\r\nX",
        "trailer": chunked(b"{}", 2)[:-2] + b"X: ",
        "chunk extension": chunked(b"{}", 2)[:-5] + b"1;x=",
    }[where]
    flood = b"a: b\r\n" * 10_000 if where == "many headers" else b"x" * 60_000
    with server.wire() as wire:
        wire.send(start)
        refused = []
        try:
            for _ in range(100):
                wire.send(flood)
            refused = wire.replies()
        except (ConnectionError, TimeoutError):
            pass
        else:
            assert [reply.status for reply in refused] == [400]
    assert server.ask("GET", "/v2/health/ready").status == 200


def test_a_client_that_pipelines_without_end_is_not_read(server: Running) -> None:
    """Only so many requests are taken in before their turn; the rest stays in the client's own buffers."""
    with server.gate, server.wire() as wire:
        wire.send(infer_message("first"))
        server.wait_for_queries(1)
        wire.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                wire.send(infer_message("next"))
        held = server.call(lambda: sum(len(each.pipeline) for each in connections_of(server)))
        assert 1 < held <= server.plane.limits.pipelined_requests
        server.gate.is_open.set()
        wire.socket.settimeout(PATIENCE_S)
        assert [wire.reply().content["id"] for _ in range(held + 1)] == ["first"] + ["next"] * held


def test_a_pipeline_has_a_bound(server: Running) -> None:
    most = server.plane.limits.pipelined_requests
    with server.wire() as wire, server.gate:
        wire.send(infer_message("first") + message("GET", "/v2") * (most + 50))
        server.wait_until(lambda: any(each.unsound for each in connections_of(server)), "no more is taken")
        server.gate.is_open.set()
        replies = wire.replies()
    assert [reply.status for reply in replies] == [200] * (most + 1) + [400]


def connections_of(server: Running) -> Any:
    return server.listeners._http[0][1].connections


@pytest.mark.parametrize("data", [message("POST", PINNED, b"{}"), message("GET", "/v2/models/fashion")])
def test_a_client_that_never_reads_is_not_read_either(server: Running, data: bytes) -> None:
    with server.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.socket.settimeout(0.5)
        with pytest.raises(OSError):  # held back, or cut off
            for _ in range(10_000):
                wire.send(data * 500)
        written = server.call(lambda: [each.transport.get_write_buffer_size() for each in connections_of(server)])
        assert sum(written) < 3_000_000


@pytest.fixture
def quick(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr(listeners, "SWEEP_S", 0.05)
    return Running(repository, limits=Limits(header_timeout_s=0.3, keep_alive_s=1.0, connections=3))


def test_slow_and_idle_clients_are_cut(quick: Running) -> None:
    with quick as server:
        assert server.ask("POST", PINNED, ONE).status == 200
        body = infer_message("slow")
        slow = [b"", b"G", body[:40], body[: len(body) - 1], body.replace(PINNED.encode(), INFER.encode())[:-1]]
        for data in slow:
            with server.wire() as wire:
                wire.send(data)
                assert wire.is_closed()
        assert server.call(lambda: server.plane.refused["expired"]) == 3  # of which something was known
        with server.wire() as wire:  # a body that drips
            wire.send(chunked(ONE, 1000)[:300])
            began = time.monotonic()
            with pytest.raises(ConnectionError):
                while time.monotonic() - began < PATIENCE_S:
                    wire.send(b"1\r\nx\r\n")
                    time.sleep(0.02)
        with server.wire() as wire, server.gate:  # one that waits for its answer is not slow
            wire.send(infer_message("patient") + infer_message("behind"))
            server.wait_for_queries(1)
            began = time.monotonic()
            server.wait_until(lambda: time.monotonic() - began > 1.5, "longer than a slow or idle client may stay")
            server.gate.is_open.set()
            assert [wire.reply().content["id"] for _ in range(2)] == ["patient", "behind"]
        with server.wire() as wire:  # idle
            assert wire.ask("POST", PINNED, ONE).status == 200
            assert wire.is_closed()


def test_a_known_request_that_waits_for_its_answer_is_not_slow(quick: Running) -> None:
    """One that comes in a single piece, and that the parser does not see."""
    with quick as server, server.wire() as wire:
        request = infer_message("patient")
        for has_to_wait in (False, True):
            with server.gate:
                wire.send(request)
                server.wait_for_queries(1)
                began = time.monotonic()
                if has_to_wait:
                    server.wait_until(lambda began=began: time.monotonic() - began > 0.7, "longer than one may be slow")
            assert wire.reply().content["id"] == "patient"


def test_a_client_that_never_reads_is_cut(quick: Running) -> None:
    with quick as server, server.wire() as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.socket.settimeout(0.3)
        with pytest.raises(OSError):
            for _ in range(10_000):
                wire.send(message("GET", "/v2/models/fashion") * 500)
        server.wait_until(lambda: not connections_of(server), "the connection is gone")


def test_too_many_connections(quick: Running) -> None:
    with quick as server, server.wire() as one, server.wire() as two, server.wire() as three:
        for wire in (one, two, three):
            assert wire.ask("GET", "/v2").status == 200
        with server.wire() as four:
            reply = four.reply()
            assert (reply.status, reply.reason) == (429, "overloaded")
            assert int(reply.headers["retry-after"]) >= 1
            assert four.is_closed()
        one.socket.close()
        server.wait_until(lambda: len(connections_of(server)) < 3, "there is room")
        assert server.ask("GET", "/v2").status == 200


def test_a_crowd_that_leaves_together_is_closed_in_portions() -> None:
    """Ten thousand were closed in one turn of the loop, a third of a second in which nobody was answered."""

    async def work() -> None:
        turns: list[int] = [0]

        class Left:
            """A connection, and its transport."""

            def __init__(self) -> None:
                self.loop = asyncio.get_running_loop()
                self.transport = self

            def close(self) -> None:
                turns[-1] += 1

        traffic: Any = Traffic(1000)
        for _ in range(1000):
            traffic.leaves(Left())
        while sum(turns) < 1000:
            await asyncio.sleep(0)
            turns.append(0)
        assert max(turns) == SWEPT
        traffic.leaves(Left())  # and those who come later leave, too
        await asyncio.sleep(0)
        assert turns[-1] == 1 and not traffic.leaving

    asyncio.run(asyncio.wait_for(work(), 20))
