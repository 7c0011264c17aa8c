"""Clients of frames: a camera's images in, answers out, each frame at the size that server and network allow.

`AsyncFrameClient` is for asyncio, `FrameClient` for any other program. Both take a URL of HTTP (http://, https://) or
of gRPC (grpc://, grpcs://). docs/network.md says what passes between a client and its server.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from stretto.client.address import DEFAULT_URL
from stretto.client.answer import Answer
from stretto.client.asking import MAX_DEADLINE_MS, NS_PER_MS
from stretto.client.errors import BadRequest, ConnectionFailed, Expired, Overloaded, StrettoClientError
from stretto.client.frame_input import FrameInput, FrameTensor, checked_encoding, frame_tensor, make_ready
from stretto.client.frame_stats import Frame, FrameOutcome, FrameStats
from stretto.client.frame_transport import HttpFrames, Transport
from stretto.client.images import RAW
from stretto.client.pacing import Pacer, Size
from stretto.client.streams import Transfer
from stretto.client.tensors import Array
from stretto.core.encoding import JPEG_QUALITY
from stretto.core.pacing import GRACE_NS, IN_FLIGHT

FIRST_ROUND_TRIPS = 3
ROUND_TRIP_S = 2.0  # between two looks at the round trip
INLINE_PIXELS = 100_000  # a larger frame is made smaller in a thread
GRPC_SCHEMES = ("grpc://", "grpcs://")


@dataclass(frozen=True)
class FrameOptions:
    """`size`: send every frame at this one, whatever the server says and the network allows; None: adapt.

    `in_flight`: frames that may wait to be sent or for their answers at a time. `grace_ms`: how long after the SLO an
    answer is still waited for, so that the server's word is heard.
    """

    slo_ms: float
    client_id: str = ""
    encoding: str = RAW
    quality: int = JPEG_QUALITY
    size: Size | None = None
    in_flight: int = IN_FLIGHT
    grace_ms: float = GRACE_NS / NS_PER_MS
    token: str | None = None
    ca_file: str | Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.slo_ms <= MAX_DEADLINE_MS:
            raise BadRequest(f"slo_ms is {self.slo_ms}; it must be above 0 and at most {MAX_DEADLINE_MS:,.0f}")
        if not 1 <= self.in_flight <= 256:
            raise BadRequest(f"in_flight is {self.in_flight}; it is from 1 to 256")
        if not 0 <= self.grace_ms <= MAX_DEADLINE_MS:
            raise BadRequest(f"grace_ms is {self.grace_ms}; it must be from 0 to {MAX_DEADLINE_MS:,.0f}")


class AsyncFrameClient:
    """`async with AsyncFrameClient(url, "cameras", slo_ms=100) as frames: frame = await frames.send(image)`

    Belongs to one event loop. Send frames as they are made, without waiting for the answers before: each call is a task
    of its own. One frame at a time is on its way to the server, so that its bandwidth can be measured.
    """

    def __init__(self, url: str = DEFAULT_URL, application: str = "", **options: Any) -> None:
        """`options` are those of FrameOptions."""
        given = FrameOptions(**options)
        self.options = given if given.client_id else replace(given, client_id=uuid.uuid4().hex)
        self.application = application
        self.stats = FrameStats()
        self._transport = _transport(url, self.options)
        self._line = asyncio.Lock()  # held while a frame is on its way there
        self._takes: FrameInput
        self._pacer: Pacer
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask what the application takes, and how far the server is."""
        self._takes = await self._transport.describe(self.application)
        checked_encoding(self._takes, self.options.encoding)
        await asyncio.to_thread(make_ready, self._takes, self.options.encoding, self.options.quality)
        size = self.options.size
        if size is not None and size not in self._takes.sizes:
            taken = ", ".join(f"{height}x{width}" for height, width in self._takes.sizes)
            raise BadRequest(f"the server takes frames of {taken}, not of {size[0]}x{size[1]}")
        slo_ns = round(self.options.slo_ms * NS_PER_MS)
        guesses = self._guesses(is_bytes=True)
        self._pacer = Pacer(time.monotonic_ns(), slo_ns, self._takes.sizes, guesses, self._transport.probe_bytes)
        for _ in range(FIRST_ROUND_TRIPS):
            self._pacer.went(await self._transport.round_trip_ns())
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def _guesses(self, is_bytes: bool) -> list[float]:
        return [self._takes.guess_bytes(size, self.options.encoding, is_bytes) for size in self._takes.sizes]

    async def send(self, frame: ArrayLike, made_ns: int | None = None) -> Frame:
        """What became of a frame, an image of [h, w] or [channels, h, w]. `made_ns`: when it was made, on the clock of
        time.monotonic_ns; None: now. BadRequest where it is no such image.
        """
        if self._looking is None:
            raise BadRequest("the client was not started; use it in `async with`, or call start")
        image = np.asarray(frame)
        made = time.monotonic_ns() if made_ns is None else made_ns
        stats = self.stats
        if not stats.made:
            self._pacer.guess(self._guesses(is_bytes=image.dtype == np.uint8))
        stats.made += 1
        stats.in_flight += 1
        self._pacer.made(made)
        end = Frame(FrameOutcome.FAILED, made_s=made / 1e9)
        try:
            end = replace(await self._one(image, made), made_s=end.made_s)
        finally:
            stats.ended(end)
            self._show()
        return end

    async def _one(self, image: Array, made_ns: int) -> Frame:
        if self.stats.in_flight > self.options.in_flight:
            return Frame(FrameOutcome.TOO_MANY)
        if self.options.size is None and self._pacer.is_held_back(time.monotonic_ns()):
            return Frame(FrameOutcome.HELD_BACK)
        await self._line.acquire()
        transfer = Transfer(self._line.release)
        try:
            size = self._size(made_ns)
            if size is None:
                return Frame(FrameOutcome.TOO_LATE_TO_SEND)
            tensor = await self._tensor(image, size)
            if not self._has_time(made_ns):
                return Frame(FrameOutcome.TOO_LATE_TO_SEND)
            return await self._exchange(tensor, size, made_ns, transfer)
        finally:
            transfer.arrived()  # or it never will

    def _size(self, made_ns: int) -> Size | None:
        now_ns = time.monotonic_ns()
        left_ns = made_ns + self._pacer.slo_ns - now_ns
        if self.options.size is not None:
            return self.options.size if left_ns > 0 else None
        return self._pacer.size_for(now_ns, left_ns)

    def _has_time(self, made_ns: int) -> bool:
        """Whether a frame that is ready may come back in time. One of a fixed size is sent while it is not late."""
        left_ns = made_ns + self._pacer.slo_ns - time.monotonic_ns()
        return left_ns > (self._pacer.round_trip_ns if self.options.size is None else 0)

    async def _tensor(self, image: Array, size: Size) -> FrameTensor:
        given = self._takes, image, size, self.options.encoding, self.options.quality
        began_ns = time.monotonic_ns()
        if image.size <= INLINE_PIXELS:
            tensor = frame_tensor(*given)
        else:
            tensor = await asyncio.to_thread(frame_tensor, *given)
        now_ns = time.monotonic_ns()
        self._pacer.prepared(now_ns, size, now_ns - began_ns)
        self.stats.preparing_ms = (now_ns - began_ns) / NS_PER_MS
        return tensor

    async def _exchange(self, tensor: FrameTensor, size: Size, made_ns: int, transfer: Transfer) -> Frame:
        pacer, now_ns = self._pacer, time.monotonic_ns()
        parameters = {"client_id": self.options.client_id, **pacer.network_parameters(now_ns, now_ns - made_ns)}
        message = self._transport.message(self.application, tensor, parameters)
        self._measure(transfer, message.size)
        pacer.sent(size, message.size)
        self.stats.sent += 1
        self.stats.sent_bytes += message.size
        self.stats.size = size
        sent = Frame(FrameOutcome.FAILED, size=size, sent_bytes=message.size)
        timeout_ns = max(1, made_ns + pacer.slo_ns + round(self.options.grace_ms * NS_PER_MS) - now_ns)
        try:
            answer = await self._transport.send(message, timeout_ns, transfer)
        except StrettoClientError as error:
            return self._unanswered(sent, error, made_ns, transfer)
        return self._answered(sent, answer, made_ns, transfer)

    def _measure(self, transfer: Transfer, frame_bytes: int) -> None:
        """The bandwidth, when the frame has arrived; then the next one may go."""

        def arrived() -> None:
            if transfer.started_ns is not None and transfer.acknowledged_ns is not None:
                took_ns = transfer.acknowledged_ns - transfer.started_ns
                self._pacer.acknowledged(transfer.acknowledged_ns, frame_bytes, took_ns)
            self._line.release()

        transfer.on_arrival = arrived

    def _answered(self, sent: Frame, answer: Answer, made_ns: int, transfer: Transfer) -> Frame:
        now_ns = time.monotonic_ns()
        latency_ns = now_ns - made_ns
        serving_ns = (answer.queue_ms + answer.run_ms) * NS_PER_MS
        if transfer.acknowledged_ns is not None:
            serving_ns = now_ns - transfer.acknowledged_ns
        self._pacer.answered(now_ns, 0.0 if serving_ns != serving_ns else serving_ns, answer.parameters)
        outcome = FrameOutcome.ON_TIME if latency_ns <= self._pacer.slo_ns else FrameOutcome.LATE
        latency_ms = latency_ns / NS_PER_MS
        return replace(sent, outcome=outcome, answer=answer, latency_ms=latency_ms, has_arrived=True)

    def _unanswered(self, sent: Frame, error: StrettoClientError, made_ns: int, transfer: Transfer) -> Frame:
        now_ns = time.monotonic_ns()
        if error.status is None:
            if isinstance(error, Expired) and transfer.started_ns is not None and transfer.acknowledged_ns is None:
                # It is not through yet: the network is slower than this, which is known now.
                self._pacer.acknowledged(now_ns, sent.sent_bytes, now_ns - transfer.started_ns)
            return replace(sent, error=error, has_arrived=transfer.acknowledged_ns is not None)
        known_ns = transfer.acknowledged_ns
        had_ns = None if known_ns is None else made_ns + self._pacer.slo_ns - known_ns
        self._pacer.refused(now_ns, isinstance(error, Overloaded), error.parameters, had_ns)
        return replace(sent, outcome=FrameOutcome.REFUSED, error=error, has_arrived=True)

    def _show(self) -> None:
        stats, now_ns = self.stats, time.monotonic_ns()
        stats.bandwidth = self._pacer.bytes_per_s(now_ns)
        stats.rtt_ms = self._pacer.round_trip_ns / NS_PER_MS
        stats.rate = self._pacer.rate(now_ns)

    async def _look(self) -> None:
        """At the round trip now and then, while no frame is on its way there: a frame before it would count too."""
        while True:
            await asyncio.sleep(ROUND_TRIP_S)
            for _ in range(100):
                if not self._line.locked():
                    break
                await asyncio.sleep(0.005)
            with contextlib.suppress(StrettoClientError):
                self._pacer.went(await self._transport.round_trip_ns())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await self._transport.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class FrameClient:
    """`with FrameClient(url, "cameras", slo_ms=100) as frames: frame = frames.send(image)`

    Frames travel in a thread of its own. `submit` returns at once, with a future; a camera's loop calls that.
    """

    def __init__(self, url: str = DEFAULT_URL, application: str = "", **options: Any) -> None:
        """`options` are those of FrameOptions."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stretto-frames", daemon=True)
        self._thread.start()
        try:
            self._frames = self._wait(self._made(url, application, options))
        except BaseException:
            self._end()
            raise

    async def _made(self, url: str, application: str, options: dict[str, Any]) -> AsyncFrameClient:
        return await AsyncFrameClient(url, application, **options).__aenter__()

    @property
    def stats(self) -> FrameStats:
        return self._frames.stats

    @property
    def options(self) -> FrameOptions:
        return self._frames.options

    def submit(self, frame: ArrayLike, made_ns: int | None = None) -> concurrent.futures.Future[Frame]:
        """What became of the frame, later."""
        if not self._thread.is_alive():
            raise ConnectionFailed("this client is closed")
        made = time.monotonic_ns() if made_ns is None else made_ns
        return asyncio.run_coroutine_threadsafe(self._frames.send(frame, made), self._loop)

    def send(self, frame: ArrayLike, made_ns: int | None = None) -> Frame:
        """Waits for what becomes of it."""
        return self.submit(frame, made_ns).result()

    def close(self) -> None:
        if self._thread.is_alive():
            with contextlib.suppress(StrettoClientError):
                self._wait(self._frames.close())
            self._end()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _transport(url: str, options: FrameOptions) -> Transport[Any]:
    if url.startswith(GRPC_SCHEMES):
        from stretto.client.frame_grpc import GrpcFrames

        return GrpcFrames(url, options.token, options.ca_file)
    return HttpFrames(url, options.token, options.ca_file, options.in_flight + 2)
