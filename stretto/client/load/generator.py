"""Drives a load: looks at the clock, writes encoded requests, and hands what comes back to the record."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from stretto.alarm import Alarm
from stretto.client.address import Endpoint
from stretto.client.answer import Response
from stretto.client.errors import ConnectionFailed, cause
from stretto.client.load.connection import Connection
from stretto.client.load.queries import Requests
from stretto.client.load.record import Record
from stretto.client.load.result import PENDING, LoadOutcome, LoadProgress, LoadResult
from stretto.client.load.spec import LoadSpec

ReportProgress = Callable[[LoadProgress], None]

LEAD_NS = 20_000_000  # between the last preparation and the first moment of the load
SWEEP_S = 0.1  # how often progress is told and overdue requests are given up
UNKNOWN_DEADLINE_MS = 30_000.0  # how long to wait for answers where nobody says
FIRST_CONNECTIONS_S = 0.01  # of the mean rate; more are opened as needed
MAX_FIRST_CONNECTIONS = 32
READ_TOGETHER = 16  # answers: one at a time, each would find the processor's caches cold
CONNECT_TIMEOUT_S = 5.0


class Generator:
    """Requests are numbered in the order in which they are due; times count from `_start_ns`."""

    def __init__(
        self,
        spec: LoadSpec,
        endpoint: Endpoint,
        requests: Requests,
        choice: list[int],
        record: Record,
        deadline_ns: int | None,
        progress: ReportProgress | None,
        penalty: str = "step",
    ) -> None:
        self.was_interrupted = False
        self._penalty = penalty
        self._spec = spec
        self._endpoint = endpoint
        self._encoded = requests.encoded
        self._is_labelled = requests.labels is not None
        self._choice = choice
        self._record = record
        self._deadline_ns = deadline_ns
        self._progress = progress
        wait_ms = UNKNOWN_DEADLINE_MS if deadline_ns is None else deadline_ns / 1e6 + spec.grace_ms
        self._patience_ns = round(wait_ms * 1e6)
        self._count = len(choice)
        self._next = 0
        self._start_ns = 0
        self._cpu_ns = 0
        self._end_ns = 0
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._backlog: deque[int] = deque()  # due, and waiting for a connection
        self._retried: set[int] = set()
        self._unread: list[tuple[int, int, Response]] = []
        self._waited = 0
        self._most_open = 0
        self._alarm: Alarm
        self._address: tuple[str, int] = (endpoint.host, endpoint.port)

    async def run(self) -> None:
        """Ends when every request has ended; cancelling it leaves what was recorded."""
        alarm = Alarm(asyncio.get_running_loop(), self._due)
        try:
            await self._connect_first()
            cpu_before_ns = time.thread_time_ns()
            self._alarm = alarm
            self._start_ns = time.monotonic_ns() + LEAD_NS
            alarm.set(self._start_ns + self._record.scheduled_ns[0])
            try:
                while self._record.ended < self._count:
                    await asyncio.sleep(SWEEP_S)
                    self._sweep()
            finally:
                self._read()
                self._end_ns = self._now_ns()
                self._cpu_ns = time.thread_time_ns() - cpu_before_ns
        finally:
            alarm.close()
            for task in self._opening:
                task.cancel()
            for connection in list(self._open):
                connection.number = -1
                connection.abort()
            await asyncio.sleep(0)

    def result(self) -> LoadResult:
        """What was measured so far."""
        record = self._record
        outcome = np.array(record.outcome, dtype=np.uint8)
        has_ended = outcome != PENDING
        return LoadResult(
            spec=self._spec,
            deadline_ns=self._deadline_ns,
            variants=tuple(record.variants),
            is_labelled=self._is_labelled,
            scheduled_ns=np.array(record.scheduled_ns, dtype=np.int64)[has_ended],
            latency_ns=np.array(record.latency_ns, dtype=np.int64)[has_ended],
            lag_ns=np.array(record.lag_ns, dtype=np.int64)[has_ended],
            outcome=outcome[has_ended],
            variant=np.array(record.variant, dtype=np.int16)[has_ended],
            correct=np.array(record.correct, dtype=np.int16)[has_ended],
            batch=np.array(record.batch, dtype=np.int32)[has_ended],
            elapsed_ns=max(self._end_ns, 0),
            cpu_ns=self._cpu_ns,
            connections=self._most_open,
            waited=self._waited,
            was_interrupted=self.was_interrupted,
            penalty=self._penalty,
        )

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns

    def _due(self) -> None:
        """Sends whatever is due by now, and sets the alarm for the next."""
        scheduled_ns, number = self._record.scheduled_ns, self._next
        while number < self._count:
            moment_ns = self._start_ns + scheduled_ns[number]
            if moment_ns > time.monotonic_ns():
                self._next = number
                self._alarm.set(moment_ns)
                return
            if self._idle:
                self._send(self._idle.pop(), number)
            else:
                self._waited += len(self._open) >= self._spec.connections
                self._backlog.append(number)
                self._open_more()
            number += 1
        self._next = number

    def _send(self, connection: Connection, number: int) -> None:
        connection.number = number
        connection.write(self._encoded[self._choice[number]])
        record = self._record
        record.lag_ns[number] = time.monotonic_ns() - self._start_ns - record.scheduled_ns[number]

    def answered(self, connection: Connection, received_ns: int, response: Response) -> None:
        number, connection.number = connection.number, -1
        if response.keeps_alive:
            connection.is_used = True
            self._free(connection)  # first of all: a request may be waiting
        else:
            connection.abort()
        self._unread.append((number, received_ns - self._start_ns, response))
        if len(self._unread) >= READ_TOGETHER:
            self._read()

    def _read(self) -> None:
        for number, now_ns, response in self._unread:
            self._record.answered(number, now_ns, response, self._choice[number])
        self._unread.clear()

    def spoiled(self, connection: Connection) -> None:
        """Something else than one HTTP answer came."""
        self._end(connection, LoadOutcome.BAD_ANSWER)
        connection.abort()

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection.number < 0:
            if connection in self._idle:
                self._idle.remove(connection)
        elif connection.is_untouched and connection.number not in self._retried:
            # The server closed a kept connection just when it was used again: no fault of the request.
            self._retried.add(connection.number)
            self._backlog.appendleft(connection.number)
            connection.number = -1
        else:
            self._end(connection, LoadOutcome.BROKEN)
        self._open_more()

    def _end(self, connection: Connection, outcome: LoadOutcome) -> None:
        number, connection.number = connection.number, -1
        if number >= 0:
            self._record.end(number, self._now_ns(), outcome)

    def _free(self, connection: Connection) -> None:
        if self._backlog:
            self._send(connection, self._backlog.popleft())
        else:
            self._idle.append(connection)

    def _open_more(self) -> None:
        while len(self._opening) < len(self._backlog):
            if len(self._open) + len(self._opening) >= self._spec.connections:
                return
            task = asyncio.get_running_loop().create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_one(self) -> None:
        try:
            self._free(await self._connect())
        except (OSError, TimeoutError):
            if self._backlog:  # one attempt fails one request, so that a dead server ends every one of them
                self._record.end(self._backlog.popleft(), self._now_ns(), LoadOutcome.NO_CONNECTION)

    async def _connect(self) -> Connection:
        tls = self._endpoint.tls
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                partial(Connection, self),
                *self._address,
                ssl=tls,
                server_hostname=None if tls is None else self._endpoint.host,
            )
        self._open.add(connection)
        self._most_open = max(self._most_open, len(self._open))
        return connection

    async def _connect_first(self) -> None:
        """Some connections before the start; the first also finds the address, so that no name is looked up later."""
        try:
            first = await self._connect()
            self._address = first.peer
            self._idle.append(first)
            rate = self._count / self._spec.seconds
            count = min(self._spec.connections, MAX_FIRST_CONNECTIONS, math.ceil(rate * FIRST_CONNECTIONS_S))
            for _ in range(count - 1):
                self._idle.append(await self._connect())
        except (OSError, TimeoutError) as error:
            raise ConnectionFailed(f"{self._endpoint.shown} cannot be reached ({cause(error)})") from None

    def _sweep(self) -> None:
        """Gives up what is overdue, and tells the progress."""
        self._read()
        now_ns = self._now_ns()
        oldest_ns = now_ns - self._patience_ns
        scheduled_ns = self._record.scheduled_ns
        for connection in list(self._open):
            if connection.number >= 0 and scheduled_ns[connection.number] < oldest_ns:
                self._end(connection, LoadOutcome.NO_ANSWER)
                connection.abort()
        while self._backlog and scheduled_ns[self._backlog[0]] < oldest_ns:
            self._record.end(self._backlog.popleft(), now_ns, LoadOutcome.NOT_SENT)
        if self._progress is not None:
            self._progress(self._state(now_ns))

    def _state(self, now_ns: int) -> LoadProgress:
        record = self._record
        return LoadProgress(
            fraction=min(1.0, max(0.0, now_ns / 1e9 / self._spec.seconds)),
            elapsed_s=max(0.0, now_ns / 1e9),
            sent=self._next - len(self._backlog),
            ended=record.ended,
            on_time=record.on_time,
            late=record.late,
            correct_on_time=record.correct_on_time,
            connections=len(self._open),
        )
