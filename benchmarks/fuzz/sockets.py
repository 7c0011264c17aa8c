"""Inputs over real sockets: bodies with sound framing, pipelined; any bytes, each on a connection of its own that is
then half closed; protobuf by a real gRPC channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import grpc
import grpc.aio

from benchmarks.fuzz.corpus import Entry, corpus, good_message, good_row, http_message
from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.verdict import Findings, responses

PIPELINED = 16  # bodies of a connection
TOGETHER = 16  # connections at a time
PATIENCE_S = 60.0  # longer than the server waits for the rest of a request
INFER = "/inference.GRPCInferenceService/ModelInfer"
Address = tuple[str, int]


class SocketFuzz:
    """Against any server: `applications` of the corpus should be there, else all of them are refused."""

    def __init__(self, http: Address, grpc_address: Address | None, seed: int) -> None:
        self._http = http
        self._grpc = grpc_address
        self._random = Random(seed)
        self._findings = Findings()
        self._entries = corpus()
        self._others = [entry.data for entry in self._entries]
        self._bodies = [entry for entry in self._entries if entry.kind in ("json", "tensor")]
        self._bytes = [entry for entry in self._entries if entry.kind == "http"]
        self._messages = [entry for entry in self._entries if entry.kind == "protobuf"]

    async def run(self, inputs: int) -> Findings:
        while self._findings.total < inputs:
            await self.some()
        return self._findings

    async def run_for(self, seconds: float) -> Findings:
        """As many as there is time for."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await self.some()
        return self._findings

    async def some(self) -> None:
        """A few hundred inputs of all kinds at once, and a good request after them."""
        work = [self._pipelined(self._drawn(self._bodies, PIPELINED)) for _ in range(TOGETHER)]
        work += [self._any_bytes(*self._drawn(self._bytes, 1)[0]) for _ in range(2 * TOGETHER)]
        if self._grpc is not None:
            work.append(self._called(self._drawn(self._messages, 4 * TOGETHER)))
        await asyncio.gather(*work)
        await self._pipelined([(good_row(), good_row().data)], is_good=True)

    def _drawn(self, entries: Sequence[Entry], count: int) -> list[tuple[Entry, bytes]]:
        chosen = [self._random.choice(entries) for _ in range(count)]
        return [(entry, mutated(self._random, entry.data, self._others, entry.kind)) for entry in chosen]

    async def _pipelined(self, chosen: list[tuple[Entry, bytes]], is_good: bool = False) -> None:
        """As many answers as requests, in order; a good one is answered with 200."""
        if not is_good:
            for entry, _ in chosen:
                self._findings.inputs[f"{entry.kind}, sockets"] += 1
        data = b"".join(http_message(entry.path, body, entry.headers) for entry, body in chosen)
        answers = await self._exchanged(data, len(chosen))
        if len(answers) != len(chosen):
            self._findings.found(f"{len(chosen)} bodies over a socket, {len(answers)} answers", data)
        for (status, body), (_, sent) in zip(answers, chosen, strict=False):
            self._findings.http(status, body, sent)
            if is_good and status != 200:
                self._findings.found(f"a good request was answered with {status}", b"")

    async def _any_bytes(self, entry: Entry, data: bytes) -> None:
        self._findings.inputs[f"{entry.kind}, sockets"] += 1
        for status, body in await self._exchanged(data, None):
            self._findings.http(status, body, data)

    async def _exchanged(self, data: bytes, expected: int | None) -> list[tuple[int, bytes]]:
        """Until so many answers came, or the server closes; None: we end our side, and the server must end its own."""
        received = bytearray()
        answers: list[tuple[int, bytes]] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(*self._http)
                try:
                    writer.write(data)
                    if expected is None:
                        writer.write_eof()
                    while expected is None or len(answers) < expected:
                        part = await reader.read(65_536)
                        if not part:
                            break
                        received += part
                        answers = [(status, body) for status, body, _ in responses(received)]
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self._findings.found("a hang: no end of a connection", data)
        except ConnectionRefusedError:
            self._findings.found("the server is gone", data)
        except (ConnectionError, OSError):
            pass  # closed while we still wrote, as it may
        except (ValueError, StopIteration):
            self._findings.found("answered with no HTTP", data)
        return answers

    async def _called(self, chosen: list[tuple[Entry, bytes]]) -> None:
        assert self._grpc is not None
        host, port = self._grpc
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            call = channel.unary_unary(INFER)

            async def one(data: bytes, is_good: bool = False) -> None:
                try:
                    await call(data, timeout=PATIENCE_S)
                    code = "OK"
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                self._findings.grpc(code, data)
                if is_good and code != "OK":
                    self._findings.found(f"a good call ended with {code}", b"")

            self._findings.inputs["protobuf, sockets"] += len(chosen)
            await asyncio.gather(*(one(data) for _, data in chosen))
            await one(good_message(), is_good=True)
