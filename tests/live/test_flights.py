"""A worker whose model overlaps: the next batch is started while one computes, and every end is told in order.

The model computes in threads of its own, as a GPU does beside the processor; everything else is the worker's own code.
"""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends import pinned as pinned_memory
from stretto.backends.model import Array, Batch, BatchFailure, Parts, TensorSpec
from stretto.backends.source import ModelSource
from stretto.live import arena as arenas
from stretto.live import lent, worker_process
from stretto.live import shelf as shelves
from stretto.live.arena import Arena, slot_bytes
from stretto.live.face.memory import FrontMemory
from stretto.live.frames import (
    ONE_PLACE,
    Frame,
    FrameReader,
    Kind,
    failures_in,
    places_as_text,
    run_as_text,
    spec_as_text,
)
from stretto.live.shelf import ModelSpec
from stretto.live.worker_process import WorkerProcess

TAKES, GIVES = TensorSpec("x", "float32", (4,)), TensorSpec("y", "float32", (4,))
PATIENCE_S = 20.0


class Doubling:
    """y = 2x, when it is let; a batch that begins with a negative number fails."""

    inputs, outputs, fixed_batch, memory_bytes, overlaps = (TAKES,), (GIVES,), None, 0, True

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.running: list[int] = []
        self.most = 0
        self.is_unloaded = False
        self._threads = ThreadPoolExecutor(2)
        self._room = np.zeros((2, 8, 4), np.float32)

    def prepare(self, batches: object) -> None: ...

    def buffers(self, batch: int) -> dict[str, Array]:
        return self.slot_buffers(0, batch)

    def slot_buffers(self, slot: int, batch: int) -> dict[str, Array]:
        return {"x": self._room[slot, :batch]}

    def run(self, inputs: Batch) -> dict[str, Array]:
        raise AssertionError("it is launched")

    def launch(self, slot: int, inputs: Parts) -> Landing:
        assert slot not in self.running and not self.is_unloaded
        self.running.append(slot)
        self.most = max(self.most, len(self.running))
        return Landing(self._threads.submit(self._compute, slot, np.concatenate(inputs["x"])))

    def _compute(self, slot: int, x: Array) -> dict[str, Array]:
        assert self.may_end.wait(PATIENCE_S)
        answer = 2 * x
        self.running.remove(slot)
        if x[0, 0] < 0:
            raise BatchFailure("a negative number came first")
        return {"y": answer}

    def end(self) -> None:
        self._threads.shutdown()

    def unload(self) -> None:
        assert not self.running
        self.is_unloaded = True


class Landing:
    def __init__(self, future: Future[dict[str, Array]]):
        self._future = future

    def is_done(self) -> bool:
        return self._future.done()

    def answers(self) -> dict[str, Array]:
        return self._future.result(PATIENCE_S)


class Server:
    """The other end of the worker's socket."""

    def __init__(self, model: Doubling, ours: socket.socket):
        self.model, self._channel, self._reader = model, ours, FrameReader()
        self._heard: list[Frame] = []
        source = ModelSource("torch", device="cuda:0", inputs=(TAKES,), outputs=(GIVES,))
        self.spec = ModelSpec("m", source, "x", "float32", (4,), "y", "float32", (4,), 8)
        self.arena = Arena.made(slot_bytes([self.spec]))
        socket.send_fds(ours, [Frame(Kind.MAP, self.arena.slot_size).encoded()], [self.arena.descriptor])

    def say(self, frame: Frame) -> None:
        self._channel.sendall(frame.encoded())

    def hear(self, kind: Kind) -> Frame:
        while True:
            for place, frame in enumerate(self._heard):
                if frame.kind == kind:
                    return self._heard.pop(place)
            data = self._channel.recv(1 << 16)
            assert data, "the worker is gone"
            self._heard += self._reader.feed(data)

    def is_silent(self) -> bool:
        return not any(frame.kind == Kind.ENDED for frame in self._heard)

    def run(self, number: int, slot: int, rows: Array) -> None:
        self.arena.inputs(slot, self.spec, len(rows))[...] = rows
        self.say(Frame(Kind.RUN, number, slot, len(rows), run_as_text("m")))

    def map_front(self, front: int, memory: FrontMemory) -> None:
        socket.send_fds(self._channel, [Frame(Kind.MAP_FRONT, front, memory.size).encoded()], [memory.descriptor])

    def run_lying(self, number: int, slot: int, *places: tuple[int, int, int, int]) -> None:
        count = sum(rows for _, _, rows, _ in places)
        self.say(
            Frame(
                Kind.RUN_LYING,
                number,
                slot,
                count,
                places_as_text("m", b"".join(ONE_PLACE.pack(*place) for place in places)),
            )
        )

    def answers(self, slot: int, count: int) -> Array:
        return self.arena.answers(slot, self.spec, count)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    model = Doubling()
    monkeypatch.setattr(shelves, "load_model", lambda source: model)
    monkeypatch.setattr(arenas, "pin", lambda memory: False)  # there is no GPU that would read it
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    process = WorkerProcess(theirs)
    worker = threading.Thread(target=process.work, daemon=True)
    worker.start()
    made = Server(model, ours)
    made.say(Frame(Kind.LOAD, 1, 0, text=spec_as_text(made.spec)))
    assert made.hear(Kind.LOADED).text == b""
    yield made
    model.may_end.set()
    made.say(Frame(Kind.STOP))
    worker.join(PATIENCE_S)
    assert not worker.is_alive()
    model.end()
    theirs.close()
    ours.close()
    for arena in (made.arena, process._arena):  # other tests count what is mapped
        assert arena is not None
        arena.close()


def rows(count: int, first: float = 1.0) -> Array:
    return np.full((count, 4), first, np.float32) + np.arange(4, dtype=np.float32)


def test_the_second_begins_before_the_first_has_ended(server: Server) -> None:
    server.model.may_end.clear()
    server.run(10, 0, rows(3))
    server.run(11, 1, rows(5, 7.0))
    while server.model.most < 2:
        assert server.is_silent()
    server.model.may_end.set()
    first, second = server.hear(Kind.ENDED), server.hear(Kind.ENDED)
    assert (first.a, second.a) == (10, 11), "in the order in which they were given"
    assert first.b <= first.c <= second.b <= second.c, "the second counts from the end of the first"
    np.testing.assert_array_equal(server.answers(0, 3), 2 * rows(3))
    np.testing.assert_array_equal(server.answers(1, 5), 2 * rows(5, 7.0))


def test_what_loads_leave_behind_is_collected_before_batches_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be while they run: a look at all that PyTorch and four programs are took longer than a deadline."""
    left: list[weakref.ref[Landing]] = []

    def load(source: ModelSource) -> Doubling:
        knot = Landing(Future())
        knot.itself = knot  # type: ignore[attr-defined]
        left.append(weakref.ref(knot))
        return server.model

    monkeypatch.setattr(shelves, "load_model", load)
    gc.disable()
    try:
        for number, key in enumerate("no", 2):
            server.say(Frame(Kind.LOAD, number, text=spec_as_text(replace(server.spec, key=key))))
        assert [server.hear(Kind.LOADED).text for _ in "no"] == [b"", b""]
    finally:
        gc.enable()
    assert [knot() for knot in left] == [None, None]


def test_a_batch_that_fails_fails_alone(server: Server) -> None:
    server.run(20, 0, rows(2, -1.0))
    server.run(21, 1, rows(2))
    failed, sound = server.hear(Kind.ENDED), server.hear(Kind.ENDED)
    assert failures_in(failed.text) == dict.fromkeys((0, 1), "a negative number came first")
    assert not failures_in(sound.text)
    np.testing.assert_array_equal(server.answers(1, 2), 2 * rows(2))


def test_memory_is_exchanged_and_models_go_only_between_batches(server: Server) -> None:
    server.model.may_end.clear()
    server.run(30, 0, rows(2))
    threading.Timer(0.05, server.model.may_end.set).start()
    server.say(Frame(Kind.UNLOAD, text=b"m"))  # Doubling.unload refuses while a batch runs
    assert server.hear(Kind.ENDED).a == 30
    server.run(31, 1, rows(1))
    assert failures_in(server.hear(Kind.ENDED).text) == {0: "the model is not loaded"}
    assert server.model.is_unloaded


def test_answers_do_not_wait_for_a_load(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = threading.Event()

    def loaded(source: ModelSource) -> Doubling:
        assert may_load.wait(PATIENCE_S)
        return Doubling()

    monkeypatch.setattr(shelves, "load_model", loaded)
    server.model.may_end.clear()
    server.run(40, 0, rows(2))
    server.say(Frame(Kind.LOAD, 2, 0, text=spec_as_text(replace(server.spec, key="other"))))
    server.say(Frame(Kind.RUN, 41, 1, 2, run_as_text("other")))
    server.model.may_end.set()
    assert server.hear(Kind.ENDED).a == 40
    may_load.set()
    assert server.hear(Kind.ENDED).a == 41


def test_rows_that_lie_with_front_ends_are_copied_when_the_batch_begins(server: Server) -> None:
    """One part of them would else be read by the device while its front end puts another request there."""
    memories = [FrontMemory.made(4096) for _ in range(2)]
    for front, memory in enumerate(memories):
        server.map_front(front, memory)
    lying = memories[0].array(128, "float32", (2, 4))
    lying[...] = rows(2)
    memories[1].array(64, "float32", (1, 4))[...] = rows(1, 9.0)
    server.model.may_end.clear()
    server.run_lying(50, 0, (0, 0, 2, 128))
    while server.model.most < 1:
        assert server.is_silent()
    lying[...] = -5.0
    server.model.may_end.set()
    assert server.hear(Kind.ENDED).a == 50
    np.testing.assert_array_equal(server.answers(0, 2), 2 * rows(2))
    lying[...] = rows(2)
    server.run_lying(51, 1, (1, 0, 1, 64), (0, 0, 2, 128))
    assert server.hear(Kind.ENDED).a == 51
    np.testing.assert_array_equal(server.answers(1, 3), 2 * np.concatenate((rows(1, 9.0), rows(2))))


def test_rows_in_memory_that_the_device_reads_are_not_copied(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that the server read into its own memory; those of front ends are copied, whatever their memory is."""
    memory, pinned = FrontMemory.made(4096), {}
    monkeypatch.setattr(pinned_memory, "_ranges", pinned)

    def pin(given: Array) -> None:
        pinned[int(given.ctypes.data)] = int(given.ctypes.data) + given.nbytes

    monkeypatch.setattr(worker_process, "pin", pin)
    monkeypatch.setattr(worker_process, "unpin", lambda given: pinned.pop(int(given.ctypes.data)))
    launch, launched = server.model.launch, []

    def noting(slot: int, inputs: Parts) -> Landing:
        launched.extend(inputs["x"])
        return launch(slot, inputs)

    monkeypatch.setattr(server.model, "launch", noting)
    for front in (lent.FIRST, 1):
        server.map_front(front, memory)
        memory.array(64, "float32", (2, 4))[...] = rows(2)
        server.run_lying(80, 0, (front, 0, 2, 64))
        assert not failures_in(server.hear(Kind.ENDED).text)
        np.testing.assert_array_equal(server.answers(0, 2), 2 * rows(2))
    assert [any(start <= x.ctypes.data < end for start, end in pinned.items()) for x in launched] == [True, False]
    for large_bytes, parts in ((8, 2), (1 << 15, 1)):  # of several parts, large ones alone are copied one by one
        monkeypatch.setattr(worker_process, "LARGE_BYTES", large_bytes)
        launched.clear()
        server.run_lying(82, 0, (lent.FIRST, 0, 1, 64), (lent.FIRST, 0, 1, 80))
        assert not failures_in(server.hear(Kind.ENDED).text) and len(launched) == parts
        np.testing.assert_array_equal(server.answers(0, 2), 2 * rows(2))
    launched.clear()
    server.say(Frame(Kind.UNMAP_FRONT, lent.FIRST))
    server.run(81, 0, rows(1))
    assert server.hear(Kind.ENDED).a == 81 and not pinned


def test_memory_that_is_not_there_fails_a_batch_alone(server: Server) -> None:
    memory = FrontMemory.made(4096)
    server.map_front(3, memory)
    server.say(Frame(Kind.UNMAP_FRONT, 3))
    server.map_front(4, memory)
    for number, place in enumerate(((3, 0, 1, 0), (4, 0, 1, 4096), (4, 0, 300, 0), (4, 7, 1, 0))):
        server.run_lying(60 + number, 0, place)
        ended = server.hear(Kind.ENDED)
        assert ended.a == 60 + number and len(failures_in(ended.text)) == place[2]
    memory.array(0, "float32", (1, 4))[...] = rows(1)
    server.run_lying(70, 1, (4, 0, 1, 0))
    assert not failures_in(server.hear(Kind.ENDED).text)
    np.testing.assert_array_equal(server.answers(1, 1), 2 * rows(1))
