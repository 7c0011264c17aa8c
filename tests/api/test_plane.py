"""The data plane itself: what it checks, what it counts, and that its counts do not drift."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.api.answers import classified
from stretto.api.errors import ApiError
from stretto.api.inputs import checked_input, checked_outputs
from stretto.api.limits import Limits
from stretto.api.messages import InferRequest, InferResponse, InputTensor, WantedOutput
from stretto.api.plane import Plane
from stretto.core.client import Clients
from stretto.live.requests import Request
from stretto.live.state import State
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository
from tests.api.serving import Running, images


@pytest.fixture(scope="module")
def fashion() -> ApplicationFiles:
    return read_repository("zoo:fashion").applications[0]


def request(array: np.ndarray | None = None, **fields: Any) -> InferRequest:
    tensor = InputTensor("input", "FP32", images() if array is None else array)
    return InferRequest("fashion", [tensor], **{"parameters": {"deadline_ms": 20_000.0}, **fields})


def refused(check: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check()
    return caught.value


def test_input_checks(fashion: ApplicationFiles) -> None:
    good = images(2)
    assert checked_input(fashion, [InputTensor("input", "FP32", good)]) is good
    wrong = [
        [],
        [InputTensor("input", "FP32", good)] * 2,
        [InputTensor("other", "FP32", good)],
        [InputTensor("input", "FP64", good.astype(np.float64))],
        [InputTensor("input", "FP32", good[0])],
        [InputTensor("input", "FP32", np.float32(0.5).reshape(()))],
        [InputTensor("input", "FP32", good.reshape(2, 28, 28, 1))],
        [InputTensor("input", "FP32", good + 1)],
        [InputTensor("input", "FP32", np.where(good > 0.5, np.float32(np.nan), good))],
    ]
    for inputs in wrong:
        assert refused(lambda inputs=inputs: checked_input(fashion, inputs)).reason.http_status == 400
    for rows in (0, 33):
        error = refused(lambda rows=rows: checked_input(fashion, [InputTensor("input", "FP32", images(rows))]))
        assert error.reason.http_status == 413
    unbounded = replace(fashion, limits=replace(fashion.limits, min_value=None, max_value=None))
    assert checked_input(unbounded, [InputTensor("input", "FP32", good * 1e6)]) is not None
    for value in (np.nan, np.inf):
        worse = good.copy()
        worse[1, 0, 3, 3] = value
        assert "finite" in refused(lambda w=worse: checked_input(unbounded, [InputTensor("input", "FP32", w)])).message


def test_output_checks(fashion: ApplicationFiles) -> None:
    assert checked_outputs(fashion, [], 1) == WantedOutput("probabilities")
    best = WantedOutput("probabilities", 3, True)
    assert checked_outputs(fashion, [best], 1) is best
    for wanted in ([WantedOutput("other")], [best, best], [WantedOutput("probabilities", -1)]):
        assert refused(lambda wanted=wanted: checked_outputs(fashion, wanted, 1)).reason.http_status == 400


def test_classified() -> None:
    answers = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]], np.float32)
    best = classified(answers, 2, ("a", "b", "c"))
    assert best.tolist() == [[b"0.500000:1:b", b"0.300000:2:c"], [b"0.400000:0:a", b"0.400000:1:b"]]
    assert classified(answers, 9, ()).shape == (2, 3)
    assert classified(answers, 1, ()).tolist() == [[b"0.500000:1"], [b"0.400000:0"]]


def on_plane(server: Running, scenario: Callable[[Plane], Any]) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(scenario(server.plane), 20)

    return server.run(run())


def test_an_answer(server: Running) -> None:
    response = on_plane(server, lambda plane: plane.infer(request(images(2), version="mlp", id="x")))
    assert response.version == "mlp" and response.id == "x" and response.outputs[0].array.shape == (2, 10)


def test_cancelling_the_task_cancels_the_queries(server: Running) -> None:
    _, before = server.counts()

    async def scenario(plane: Plane) -> None:
        open_requests: set[Request] = set()
        task = asyncio.create_task(plane.infer(request(images(3)), open_requests))
        while not plane.open_requests:
            await asyncio.sleep(0)
        assert len(open_requests) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert plane.open_requests == 0 and not open_requests

    with server.gate:
        on_plane(server, scenario)
    server.wait_for_queries(0)
    assert server.counts()[1]["dropped_cancelled"] - before["dropped_cancelled"] == 3


def test_a_submission_that_fails_half_way_leaves_nothing(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first rows are with the dispatcher when a later one cannot be: they must not end, and be counted, later."""

    async def scenario(plane: Plane) -> list[Any]:
        engine = plane.service.engine
        told: list[Any] = []
        generation = engine.generation
        enter = generation.enter
        seen: list[int] = []

        def failing(*values: Any) -> None:
            if len(seen) == 2:
                raise RuntimeError("no more room")
            seen.append(1)
            enter(*values)

        generation.enter = failing  # type: ignore[method-assign]
        try:
            with pytest.raises(RuntimeError):
                plane.begin(request(images(4)), told.append)
        finally:
            generation.enter = enter  # type: ignore[method-assign]
        assert plane.open_requests == 0
        assert not engine.waiting
        await asyncio.sleep(0)
        assert plane.open_requests == 0
        return told

    assert on_plane(server, scenario) == []
    assert on_plane(server, lambda plane: plane.infer(request())).outputs


def test_an_answer_that_cannot_be_given_harms_no_other(server: Running, complaints: list[str]) -> None:
    """They share a batch, and the engine tells them one after the other."""

    async def scenario(plane: Plane) -> list[Any]:
        told: dict[str, Any] = {}

        def broken(result: InferResponse | ApiError) -> None:
            if isinstance(result, InferResponse):
                raise RuntimeError("cannot be written")
            told["broken"] = result

        for _ in range(3):
            plane.begin(request(version="linear"), broken)
        plane.begin(request(version="linear"), lambda result: told.update(good=result))
        server.gate.is_open.set()
        while len(told) < 2:
            await asyncio.sleep(0.001)
        return [told["broken"], told["good"]]

    with server.gate:
        error, response = on_plane(server, scenario)
    assert error.reason.word == "failed" and "written" not in error.message
    assert isinstance(response, InferResponse)
    assert len(complaints) == 3 and "an answer cannot be given" in complaints[0]


def test_refusals_are_counted(server: Running) -> None:
    async def scenario(plane: Plane) -> dict[str, int]:
        before = dict(plane.refused)
        asked = [
            request(np.zeros((1, 2), np.float32)),
            request(parameters={"priority": -1}),
            replace(request(), application="none"),
            request(version="none"),
            request(parameters={"min_accuracy": 1.0}),
        ]
        for each in asked:
            with pytest.raises(ApiError):
                await plane.infer(each)
        return {word: count - before.get(word, 0) for word, count in plane.refused.items()}

    found = on_plane(server, scenario)
    assert found["bad_request"] == 2 and found["not_found"] == 3


def test_too_many_requests(server: Running) -> None:
    async def scenario(_: Plane) -> None:
        plane = Plane(server.service, Limits(waiting_requests=2))
        told: list[Any] = []
        for _ in range(2):
            plane.begin(request(), told.append)
        error = refused(lambda: plane.begin(request(), told.append))
        assert error.reason.word == "overloaded" and error.retry_after_s
        server.gate.is_open.set()
        while len(told) < 2:
            await asyncio.sleep(0.001)
        plane.begin(request(), told.append)
        while len(told) < 3:
            await asyncio.sleep(0.001)
        assert plane.open_requests == 0

    with server.gate:
        on_plane(server, scenario)


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.STOPPED])
def test_unavailable(server: Running, state: State) -> None:
    async def scenario(plane: Plane) -> None:
        plane.service.state = state
        try:
            with pytest.raises(ApiError) as caught:
                await plane.infer(request())
            assert caught.value.reason.word == "unavailable"
            assert not plane.ready() and not plane.ready("fashion")
            assert plane.live() == (state is not State.STOPPED)
        finally:
            plane.service.state = State.SERVING

    on_plane(server, scenario)


def test_no_worker(server: Running) -> None:
    async def scenario(plane: Plane) -> None:
        crew = plane.service.engine.crew
        count, crew.ready_count = crew.ready_count, 0
        try:
            assert refused(lambda: plane.begin(request(), lambda _: None)).reason.word == "unavailable"
        finally:
            crew.ready_count = count

    on_plane(server, scenario)


def test_client_names_are_bounded(server: Running) -> None:
    def numbers() -> list[int]:
        service = server.service
        others, service.clients = service.clients, Clients()  # those of earlier tests are remembered for a while
        try:
            plane = Plane(service, Limits(client_ids=3))
            found = [plane._askers.slot_of(name, "mnist") for name in ("a", "b", 7, "7", "a", "c", "d", "a")]
            assert len(service.clients) == 3
        finally:
            service.clients = others
        return found

    assert server.call(numbers) == [0, 1, 2, 2, 0, 1, 2, 0]  # "c" takes the slot of "b", "d" that of 7
