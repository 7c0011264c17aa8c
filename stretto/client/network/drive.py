"""Frame clients behind links, for a while: each makes frames at its own moments, whatever became of those before them.

Every client has a proxy of its own to the server, so what it measures and what it is told is real. Latency counts from
the moment at which a frame was due.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
from numpy.typing import NDArray

from stretto.client.address import Endpoint, endpoint_of
from stretto.client.async_client import AsyncClient
from stretto.client.frame_stats import Frame, FrameOutcome
from stretto.client.frames import AsyncFrameClient
from stretto.client.load.run import PREPARING_TIMEOUT_MS, configuration_of
from stretto.client.metadata import application_metadata
from stretto.client.network.proxy import Proxy
from stretto.client.network.record import FrameRecord, MadeFrame
from stretto.client.network.result import FrameResult
from stretto.client.network.spec import ClientNow, FrameLoad, FramesNow, ReportFrames
from stretto.client.quiet_loop import driven
from stretto.core.bandwidth import Bandwidth
from stretto.core.errors import StrettoError

LEAD_NS = 50_000_000  # between the start of the traces and the first frame
LOOK_S = 0.1  # how often progress is told
GRACE_S = 2.0  # how long after its SLO a frame is waited for
SAMPLES = 20  # of a second of the trace
NS_PER_S = 1_000_000_000


def run_frames(spec: FrameLoad, progress: ReportFrames | None = None) -> FrameResult:
    """Sends the frames in an event loop of its own. Ctrl-C ends it early, and keeps the result."""
    return driven(_prepared(spec, progress), _Run.drive).result()


async def drive_frames(spec: FrameLoad, progress: ReportFrames | None = None) -> FrameResult:
    """The same inside a running event loop, which should have little else to do."""
    run = await _prepared(spec, progress)
    await run.drive()
    return run.result()


async def _prepared(spec: FrameLoad, progress: ReportFrames | None) -> _Run:
    run = _Run(spec, progress)
    await run.prepare()
    return run


class _Run:
    """One run: what it needs to know first, the clients, and what was recorded."""

    def __init__(self, spec: FrameLoad, progress: ReportFrames | None):
        self._spec = spec
        self._progress = progress
        self._record = FrameRecord()
        self._cameras: list[_Camera] = []
        self._slo_ms = 0.0
        self._elapsed_s = 0.0
        self.was_interrupted = False

    async def prepare(self) -> None:
        spec = self._spec
        endpoint = endpoint_of(spec.url, spec.token, spec.ca_file)
        if endpoint.tls is not None:
            raise StrettoError("a link passes on to an http:// URL; a certificate would not be that of the link")
        async with AsyncClient(spec.url, token=spec.token, timeout_ms=PREPARING_TIMEOUT_MS) as client:
            metadata = application_metadata(await client.metadata(spec.application))
            configured = await configuration_of(client, spec.application)
        named = dict.fromkeys((*configured.ladder, *metadata.versions))
        self._record.variants = {name: number for number, name in enumerate(named)}
        slo_ms = configured.slo_ms if spec.slo_ms is None else spec.slo_ms
        if slo_ms is None:
            raise StrettoError(f"the server does not tell the SLO of {spec.application}; give one in milliseconds")
        self._slo_ms = slo_ms
        draws = np.random.default_rng((spec.seed, 3))
        for number in range(len(spec.links)):
            choices = draws.permutation(len(spec.inputs))
            self._cameras.append(_Camera(number, spec, slo_ms, endpoint, self._record, choices, float(draws.random())))

    async def drive(self) -> None:
        begun_s = time.monotonic()
        telling: asyncio.Task[None] | None = None
        async with contextlib.AsyncExitStack() as stack:
            for camera in self._cameras:
                await stack.enter_async_context(camera.proxy)
                camera.client = await stack.enter_async_context(camera.opened())
            start_ns = time.monotonic_ns()
            for camera in self._cameras:
                camera.proxy.restart(start_ns)
            try:
                if self._progress is not None:
                    telling = asyncio.create_task(self._tell(start_ns))
                await asyncio.gather(*(camera.film(start_ns) for camera in self._cameras))
            finally:
                self._elapsed_s = time.monotonic() - begun_s
                if telling is not None:
                    telling.cancel()

    def result(self) -> FrameResult:
        spec = self._spec
        return self._record.result(
            spec.application,
            round(self._slo_ms * 1e6),
            min(spec.seconds, self._elapsed_s) if self.was_interrupted else spec.seconds,
            "told" if spec.edge is None else str(spec.edge),
            spec.links,
            spec.link_names,
            spec.labels is not None,
            self.was_interrupted,
        )

    async def _tell(self, start_ns: int) -> None:
        assert self._progress is not None
        while True:
            now_ns = time.monotonic_ns() - start_ns
            clients = tuple(camera.now(now_ns) for camera in self._cameras)
            self._progress(FramesNow(now_ns / NS_PER_S, self._spec.seconds, self._slo_ms, clients))
            await asyncio.sleep(LOOK_S)


class _Camera:
    """One client: its link, and the frames that it makes."""

    def __init__(
        self,
        number: int,
        spec: FrameLoad,
        slo_ms: float,
        endpoint: Endpoint,
        record: FrameRecord,
        choices: NDArray[np.int64],
        phase: float,
    ):
        self._number = number
        self._spec = spec
        self._slo_ms = slo_ms
        self._record = record
        self._choices = choices
        self._phase = phase  # of a frame's period
        self._asking: set[asyncio.Task[None]] = set()
        self.proxy = Proxy(endpoint.host, endpoint.port, spec.links[number])
        self.client: AsyncFrameClient

    def opened(self) -> AsyncFrameClient:
        spec = self._spec
        return AsyncFrameClient(
            f"http://127.0.0.1:{self.proxy.port}",
            spec.application,
            slo_ms=self._slo_ms,
            size=None if spec.edge is None else (spec.edge, spec.edge),
            encoding=spec.encoding,
            token=spec.token,
        )

    async def film(self, start_ns: int) -> None:
        """Makes every frame at its moment, and waits for the last of them."""
        loop = asyncio.get_running_loop()
        period_ns = NS_PER_S / self._spec.fps
        count = max(1, round(self._spec.seconds * self._spec.fps))
        for number in range(count):
            due_ns = start_ns + LEAD_NS + round((number + self._phase) * period_ns)
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / NS_PER_S)
            choice = int(self._choices[number % len(self._choices)])
            made = self._record.made(self._number, due_ns - start_ns, choice)
            task = loop.create_task(self._ask(made, start_ns))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        if self._asking:
            await asyncio.wait(self._asking, timeout=self._slo_ms / 1e3 + GRACE_S)
        for task in list(self._asking):
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking)

    async def _ask(self, made: MadeFrame, start_ns: int) -> None:
        spec, due_ns = self._spec, start_ns + made.made_ns
        ended = Frame(FrameOutcome.FAILED)
        try:
            ended = await self.client.send(spec.inputs[made.choice], due_ns)
            if ended.answer is not None and spec.labels is not None:
                made.correct = int(np.argmax(next(iter(ended.answer.outputs.values()))[0]) == spec.labels[made.choice])
        finally:
            now_ns = time.monotonic_ns()
            bandwidth = self.client.stats.bandwidth
            if bandwidth is not None:
                made.bandwidth = bandwidth
                made.given = harmonic_mean(spec.links[self._number].up, now_ns - start_ns - NS_PER_S, now_ns - start_ns)
            self._record.end(made, now_ns - due_ns, ended)

    def now(self, now_ns: int) -> ClientNow:
        stats, record, number = self.client.stats, self._record, self._number
        return ClientNow(
            self._spec.link_names[number],
            self._spec.links[number].up.rate_at(now_ns),
            float("nan") if stats.bandwidth is None else stats.bandwidth,
            -1 if stats.size is None else stats.size[0],
            stats.variant,
            stats.latency_ms,
            record.ended[number],
            record.ended[number] - record.on_time[number],
            record.correct[number],
        )


def harmonic_mean(bandwidth: Bandwidth, start_ns: int, end_ns: int) -> float:
    """Of the rates over a span of time, as bytes sent at equal moments find them."""
    moments_ns = np.linspace(max(0, start_ns), max(1, end_ns), SAMPLES)
    rates = np.array([bandwidth.rate_at(int(moment_ns)) for moment_ns in moments_ns])
    return float(len(rates) / np.sum(1 / rates)) if rates.all() else 0.0
