"""Where a front end of a cluster keeps tensors: its own memory. It sends rows to the workers that the scheduler names,
as they lie, and gathers the answers that come straight back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from stretto.backends.model import Array
from stretto.core.address import host_and_port
from stretto.core.errors import StrettoError
from stretto.live.cluster.messages import ANSWERS, PLACE, TENSORS, counted
from stretto.live.cluster.tensors import BOUNDS, COPIED_BYTES
from stretto.live.cluster.wire import Unreachable, Wire, Wires
from stretto.live.face.front import Directory
from stretto.live.face.messages import DECISION, NONSENSE, Kind, plain, unpacked
from stretto.live.requests import Request
from stretto.live.rows import as_array
from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.cluster")

MAX_WORKERS = 100_000


class Kept:
    """One request: its rows, and the answers to them as far as they came."""

    __slots__ = ("answers", "batch", "files", "has", "inputs", "left", "variants")

    def __init__(self, inputs: Array, files: ApplicationFiles):
        self.inputs = inputs
        self.files = files
        self.answers: Array | None = None
        self.has: Any = None  # which rows came, where there are several
        self.left = len(inputs)
        self.variants: list[str] = []  # that were to answer
        self.batch = 0

    def put(self, row: int, answers: Array) -> bool:
        """Rows from this one on; true when they were the last. A row that was tried twice may come twice."""
        if len(self.inputs) == 1:
            self.answers, self.left = answers.copy(), 0
            return True
        if self.answers is None:
            shape = len(self.inputs), *self.files.output.shape
            self.answers = np.zeros(shape, self.files.output.dtype)
            self.has = np.zeros(len(self.inputs), bool)
        end = row + len(answers)
        self.answers[row:end] = answers
        self.left -= int(np.count_nonzero(~self.has[row:end]))
        self.has[row:end] = True
        return self.left == 0


@dataclass(frozen=True)
class Sent:
    """Rows of a batch that were sent to a worker, as (request, first row, rows) in their order."""

    worker: int
    runs: list[tuple[int, int, int]]


class RemoteStore:
    """`came` is called with a request's number when all its answers are there. `token` is what workers know this front
    end by.
    """

    def __init__(self, wires: Wires, token: int):
        self.came: Callable[[int], None] = lambda number: None
        self._wires, self._token = wires, token
        self._kept: dict[int, Kept] = {}
        self._batches: dict[int, Sent] = {}
        self._workers: dict[int, tuple[str, Wire]] = {}

    # -- for the engine ----------------------------------------------------------------------------------------------

    def put(self, number: int, request: Request, files: ApplicationFiles) -> int | None:
        self._kept[number] = Kept(np.ascontiguousarray(as_array(request.inputs)), files)
        return -1

    def answers(self, number: int, request: Request, files: ApplicationFiles) -> Array | None:
        tensors = self._kept[number]
        return None if tensors.left else tensors.answers

    def left_behind(self, number: int, request: Request, files: ApplicationFiles) -> Array | None:
        tensors = self._kept.get(number)
        if tensors is None or tensors.left:
            return None
        request.variants, request.batch = list(dict.fromkeys(tensors.variants)), tensors.batch
        accuracies = [each.promised_accuracy for each in files.variants if [each.name] == request.variants]
        request.accuracy_sum = request.rows * accuracies[0] if accuracies else 0.0
        return tensors.answers

    def drop(self, number: int) -> None:
        self._kept.pop(number, None)

    def told(self, kind: int, payload: memoryview, directory: Directory) -> None:
        if kind == Kind.WORKERS:
            self._meet(plain(payload))
            return
        _, records, _ = unpacked(DECISION, payload)
        for (batch, worker), runs in groupby(records.tolist(), lambda record: record[1:3]):
            self._send(batch, worker, list(runs), directory)

    def close(self) -> None:
        self._meet({})

    # -- workers -----------------------------------------------------------------------------------------------------

    def _meet(self, content: Mapping[str, Any]) -> None:
        """These are there, and take tensors at these addresses. Connections are made ahead."""
        try:
            endpoints = {int(number): str(endpoint) for number, endpoint in content.items()}
        except ValueError:
            raise StrettoError(NONSENSE) from None
        if len(endpoints) > MAX_WORKERS:
            raise StrettoError(NONSENSE)
        for number, (endpoint, wire) in list(self._workers.items()):
            if endpoints.get(number) != endpoint:
                wire.close()
                del self._workers[number]
        self._batches = {batch: sent for batch, sent in self._batches.items() if sent.worker in self._workers}
        for number in endpoints.keys() - self._workers.keys():
            host_and_port(endpoints[number])
            self._workers[number] = endpoints[number], self._connected(number, endpoints[number])

    def _connected(self, number: int, endpoint: str) -> Wire:
        def heard(frames: list[Any]) -> None:
            try:
                self._answered(number, frames)
            except StrettoError as error:
                log.warning("the answers of a worker cannot be read: %s", error)

        return self._wires.calling(endpoint, heard, BOUNDS, is_large=True)

    def _send(self, batch: int, worker: int, records: list[tuple[int, ...]], directory: Directory) -> None:
        """What is not here any more is said to be missing, so that nobody waits for it."""
        if worker not in self._workers:
            return  # it is gone, and the scheduler hears of that too
        runs: list[tuple[int, int, int]] = []
        frames: list[Any] = []
        counts: list[int] = []
        for number, _, _, row, rows, size, variant in records:
            tensors = self._kept.get(number)
            runs.append((number, row, rows))
            if tensors is None or row + rows > len(tensors.inputs):
                counts.append(0)
                continue
            counts.append(rows)
            tensors.batch = max(tensors.batch, size)
            if variant < len(directory.variants):
                tensors.variants.append(directory.variants[variant][1])
            frames.append(tensors.inputs[row : row + rows].reshape(-1).view(np.uint8).data)
        is_small = sum(map(len, frames)) < COPIED_BYTES
        if is_small:
            frames = [b"".join(frames)]
        head = TENSORS.pack(batch, self._token, len(counts)) + np.array(counts, PLACE).tobytes()
        self._forget_ended()
        self._batches[batch] = Sent(worker, runs)
        try:
            self._workers[worker][1].send((head, *frames), copy=is_small)
        except Unreachable:
            log.warning("a worker does not read what it is sent")

    def _forget_ended(self) -> None:
        """Batches whose answers never came, and that nobody waits for any more."""
        while self._batches:
            batch, sent = next(iter(self._batches.items()))
            if any(number in self._kept for number, _, _ in sent.runs):
                return
            del self._batches[batch]

    def _answered(self, worker: int, frames: list[Any]) -> None:
        if len(frames) != 2:
            raise StrettoError(NONSENSE)
        (batch, rows), failed = counted(ANSWERS, frames[0])
        sent = self._batches.get(batch)
        if sent is None or sent.worker != worker:
            return
        del self._batches[batch]
        if sum(count for _, _, count in sent.runs) != rows:
            raise StrettoError(NONSENSE)
        bad = frozenset(failed.tolist())
        data, first = frames[1], 0
        given, answers = None, np.empty(0)
        for number, row, count in sent.runs:
            tensors = self._kept.get(number)
            places = range(first, first + count)
            first += count
            if tensors is None or not bad.isdisjoint(places):
                continue  # the whole request ends with a row that has no answer
            gives = tensors.files.output
            if gives is not given:  # once for a batch, as a rule
                if len(data) != rows * gives.row_bytes:
                    raise StrettoError(NONSENSE)
                given, answers = gives, np.frombuffer(data, np.uint8).view(gives.dtype).reshape(rows, *gives.shape)
            if tensors.put(row, answers[places.start : places.stop]):
                self.came(number)
