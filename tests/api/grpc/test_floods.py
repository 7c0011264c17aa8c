"""One connection that opens calls without end, raw frames and nothing else: the calls of others are answered."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time

import numpy as np
import pytest

from stretto.api.grpc.servicer import SERVICE
from tests.api.grpc.running import DEFAULT_LIMITS, raw_request, run, served

ONE = np.ones((1, 2), np.float32)
HEADERS, RESET, SETTINGS, END_HEADERS, ACK, CANCEL = 1, 3, 4, 4, 1, 8  # of HTTP/2
CALLS = 30


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICE}/ModelInfer"),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)


def flood(address: str, resets: bool, is_over: threading.Event) -> None:
    """Calls without a message, each taken back at once or never; on a new connection where the server ends one."""
    host, _, port = address.rpartition(":")
    while not is_over.is_set():
        with socket.create_connection((host, int(port)), 5) as connection:
            try:
                connection.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
                )
                for stream in range(1, 1 << 30, 200):
                    numbers = range(stream, stream + 200, 2)
                    taken_back = struct.pack(">I", CANCEL)
                    connection.sendall(
                        b"".join(
                            frame(HEADERS, END_HEADERS, number, CALL)
                            + (frame(RESET, 0, number, taken_back) if resets else b"")
                            for number in numbers
                        )
                    )
                    connection.setblocking(False)
                    try:
                        while connection.recv(65_536):
                            pass
                    except BlockingIOError:
                        pass
                    connection.settimeout(5)
                    if is_over.wait(0.001):
                        return
            except OSError:
                time.sleep(0.01)


@pytest.mark.parametrize("resets", [True, False])
def test_a_flood_of_calls_on_one_connection_cancels_nobody_else_s(resets: bool) -> None:
    async def scenario() -> None:
        async with served() as client:
            is_over = threading.Event()
            flooding = threading.Thread(target=flood, args=(client.address, resets, is_over))
            flooding.start()
            try:
                await asyncio.sleep(1.0)
                for _ in range(CALLS):
                    answer = await client.infer(raw_request(ONE), timeout=10)
                    assert answer.model_name == "mirror"
                    await asyncio.sleep(0.05)
            finally:
                is_over.set()
                flooding.join()

    run(scenario())


def test_a_client_may_have_calls_up_to_the_limit_under_way() -> None:
    """gRPC counts a call as open for a moment after its client knows that it ended: half of the limit is safe."""
    at_once = DEFAULT_LIMITS.streams_per_connection // 2

    async def scenario() -> None:
        async with served() as client:

            async def calls() -> None:
                for _ in range(5):
                    answer = await client.infer(raw_request(ONE), timeout=20)
                    assert answer.model_name == "mirror"

            await asyncio.gather(*(calls() for _ in range(at_once)))

    run(scenario())
