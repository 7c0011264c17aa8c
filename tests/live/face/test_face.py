"""Front ends and a scheduler that are not one process: the same requests, the same answers, one outcome each."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.live.face.memory import FrontMemory
from stretto.live.face.messages import (
    ENDED,
    ENDED_RECORD,
    SUBMIT,
    SUBMIT_RECORD,
    Kind,
    joined,
    packed,
    read_records,
    text,
    unpacked,
)
from stretto.live.requests import Request
from stretto.live.rows import Lying, as_array, as_arrays
from tests.live.face.paired import paired, total
from tests.live.real import conserved, until, within
from tests.live.test_service import ROWS, service_of
from tests.repository.build import Built, build


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


def test_what_a_front_end_asks_is_answered_as_in_one_process(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            here = await pair.ask("rows", ROWS)
            assert here.outcome is Outcome.ON_TIME and here.variants == ["good"]
            direct = Request("rows", ROWS, 10**10, lambda ended: None)
            service.engine.submit(direct)
            await until(lambda: direct.outcome is not None)
            assert direct.answers is not None and here.answers is not None
            np.testing.assert_array_equal(here.answers, direct.answers)
            assert here.batch == 1 and here.run_ns > 0 and here.accuracy_sum == direct.accuracy_sum
            assert pair.there.open == {} and pair.front.engine.waiting == 0 and conserved(service.engine)

    within(60, work)


@pytest.mark.parametrize(("dtype", "record"), [(SUBMIT, SUBMIT_RECORD), (ENDED, ENDED_RECORD)])
def test_records_one_at_a_time_are_those_of_an_array(dtype: np.dtype, record: struct.Struct) -> None:
    octets = np.random.default_rng(0).integers(0, 256, 5 * dtype.itemsize, np.uint8).tobytes()
    rows = np.frombuffer(octets, dtype).tolist()
    extras = {4: {"problem": "none"}}
    message = joined([record.pack(*row) for row in rows], 5, 7, extras)
    number, records, beyond = unpacked(dtype, message)
    assert (number, records.tobytes(), beyond) == (7, octets, extras)
    one_by_one, beyond = read_records(record, memoryview(message))
    assert [record.pack(*row) for row in one_by_one] == [record.pack(*row) for row in rows] and beyond == extras
    for wrong in (message[:7], message[: 8 + 4 * dtype.itemsize]):
        with pytest.raises(StrettoError):
            read_records(record, memoryview(wrong))


def test_many_rows_and_many_requests(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            rng = np.random.default_rng(1)
            inputs = [rng.random((1 + n % 4, *ROWS.shape[1:]), np.float32) for n in range(100)]
            ended = [await each for each in [pair.ask("rows", rows, pinned="good") for rows in inputs]]
            answered = [(rows, each) for rows, each in zip(inputs, ended, strict=True) if each.answers is not None]
            assert len(answered) >= 5
            for rows, each in answered[:5]:
                alone = Request("rows", rows, 10**10, lambda ended: None, pinned="good")
                service.engine.submit(alone)
                await until(lambda alone=alone: alone.outcome is not None)
                np.testing.assert_allclose(each.answers, alone.answers, rtol=1e-5)
            assert total(pair.front) == sum(map(len, inputs)) == sum(pair.front.engine.submitted.values())
            assert conserved(service.engine)

    within(60, work)


def test_its_memory_is_given_back_and_a_full_one_refuses(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service, memory=4096) as pair:
            store = pair.front.engine._store
            before = store.free  # type: ignore[attr-defined]
            ended = [await each for each in [pair.ask("rows", ROWS) for _ in range(200)]]
            refused = [each for each in ended if each.refusal == "overloaded"]
            assert refused and any(each.outcome is Outcome.ON_TIME for each in ended)
            assert store.free == before and conserved(service.engine)  # type: ignore[attr-defined]
            assert (await pair.ask("rows", ROWS)).outcome is Outcome.ON_TIME

    within(60, work)


def test_cancelled_requests_end_once(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            ended: list[Request] = []
            requests = [Request("rows", ROWS, 10**10, ended.append) for _ in range(50)]
            for request in requests:
                pair.front.engine.submit(request)
                pair.front.engine.cancel(request)
            await until(lambda: len(ended) == len(requests))
            assert {each.outcome for each in ended} <= {Outcome.DROPPED_CANCELLED, Outcome.ON_TIME}
            assert Outcome.DROPPED_CANCELLED in {each.outcome for each in ended}
            await asyncio.sleep(0.05)
            assert len(ended) == len(requests) and conserved(service.engine) and pair.there.open == {}

    within(60, work)


def test_a_front_end_that_is_gone_leaves_nothing(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service:
            async with paired(service) as pair:
                desk = pair.desk
                for _ in range(20):
                    pair.front.engine.submit(Request("rows", ROWS, 10**10, lambda ended: None))
                await asyncio.sleep(0)
            await until(lambda: desk.fronts == {} and service.engine.waiting == 0)
            assert conserved(service.engine)

    within(60, work)


def test_rows_of_a_front_end_that_is_gone_do_not_take_the_others_of_a_batch_with_them() -> None:
    memory = FrontMemory.made(4096)
    memory.array(64, "float32", (1, 2))[:] = 7
    lying = Lying(0, 1, 0, (1, 2), "float32", 0, memory, 64)
    gone = replace(lying, memory=None)
    assert [rows.tolist() for rows in as_arrays([lying, gone, np.ones((1, 2))])] == [[[7, 7]], [[0, 0]], [[1, 1]]]
    with pytest.raises(StrettoError, match="another machine"):
        as_array(gone)


def test_a_message_for_what_is_served_no_more_costs_nobody_his_link(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            generation = service.engine.generation
            numbers, generation.numbers = generation.numbers, {}
            pair.desk.numbering._of_generation = (lambda: None, pair.desk.numbering._of_generation[1])
            ended = [await each for each in [pair.ask("rows", ROWS) for _ in range(3)]]
            assert {each.refusal for each in ended} == {"unavailable"} and pair.front.engine.is_linked
            generation.numbers = numbers
            pair.desk.numbering._of_generation = (lambda: None, pair.desk.numbering._of_generation[1])
            assert (await pair.ask("rows", ROWS)).outcome is Outcome.ON_TIME

    within(60, work)


def test_queries_that_run_keep_the_layout_that_they_came_with(built: Built) -> None:
    """The description of tensors changes while one runs: its answer goes where its front end looks for it."""

    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            desk, files = pair.desk, service.files["rows"]
            larger = replace(files, input=replace(files.input, shape=(9, 9)))
            asked = [pair.ask("rows", ROWS, pinned="") for _ in range(5)]
            pair.front.engine._flush()
            await until(lambda: len(pair.there.open) > 0 or all(each.request.outcome is not None for each in asked))
            desk.numbering.take("rows", larger)
            assert [each.row_bytes for each in desk.numbering.sized[0]] == [16, 324]
            assert desk.numbering.first_sizes.tolist() == [1]
            ended = [await each for each in asked]
            assert {each.outcome for each in ended} == {Outcome.ON_TIME}
            assert all(np.isclose(each.answers.sum(), 1.0, atol=1e-3) for each in ended)

    within(60, work)


def test_without_a_scheduler_requests_end_as_unavailable_and_are_counted_by_the_next(built: Built) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            waiting = [pair.ask("rows", ROWS) for _ in range(5)]
            before = service.engine.books.totals(service.engine.generations())["rows"][0]
            pair.front.engine._flush()
            pair.link._transport.abort()  # type: ignore[union-attr]
            ended = [await each for each in waiting]
            assert {each.refusal for each in ended} == {"unavailable"} and pair.front.engine.waiting == 0
            assert not pair.front.is_ready() and pair.front.files == {}
            late = Request("rows", ROWS, 10**9, lambda ended: None)
            with pytest.raises(KeyError):
                pair.front.engine.submit(late)
            pair.there.heard(
                Kind.CLOSED, memoryview(text({"report": 1, "unknown": {"rows": {str(int(Outcome.FAILED)): 5}}}))
            )
            submitted, outcomes = service.engine.books.totals(service.engine.generations())["rows"]
            assert submitted >= before + 5 and outcomes[Outcome.FAILED] == 5

    within(60, work)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 8,
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 0, 0, 0)]),  # no rows
        packed(SUBMIT, [(1, 10**9, 0, 10**9, 0, 1, 0, 0)], 99),  # memory that it does not have
        packed(SUBMIT, [(1, 10**9, 0, -64, 0, 1, 0, 0)], 99),
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 60_000, 0, 0)], 99),  # more than that
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 9, 0)], 99),  # no such size
        packed(SUBMIT, [(1, 10**9, 0, 2**63 - 64, 0, 1, 0, 0)], 99),  # whose end is no number any more
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, -1)], 99),
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, 0)] * 2, 99),  # one number twice
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, 0)], 99)[:-3],
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, 0)], 99) + b"{",
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, 0)], 99) + b'{"7":{}}',
        packed(SUBMIT, [(1, 10**9, 0, 0, 0, 1, 0, 0)], 99) + b'{"0":[]}',
    ],
)
def test_nonsense_ends_the_link_and_nothing_else(built: Built, payload: bytes) -> None:
    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            assert pair.front.engine._link is not None
            pair.front.engine._link.send(Kind.SUBMIT, payload)
            await until(lambda: not pair.front.engine.is_linked)
            await until(lambda: pair.desk.fronts == {} and service.engine.waiting == 0)
            async with paired(service) as other:
                assert (await other.ask("rows", ROWS)).outcome is Outcome.ON_TIME
            assert conserved(service.engine)

    within(60, work)


def test_requests_that_are_dropped_as_they_come_end_all_of_them(built: Built) -> None:
    """A dropped query's place in the dispatcher was another's before its front end was told, and then it never was."""

    async def work() -> None:
        async with service_of(built.root) as service, paired(service) as pair:
            ended: list[Request] = []
            count = 0
            for turn in range(30):
                for number in range(40):
                    deadline_ns = 1 if (turn + number) % 3 else 10**9
                    pair.front.engine.submit(Request("rows", ROWS[:1], deadline_ns, ended.append))
                    count += 1
                await asyncio.sleep(0.002 if turn % 5 else 0)
            await until(lambda: len(ended) == count)
            outcomes = {each.outcome for each in ended}
            assert outcomes & {Outcome.DROPPED_INFEASIBLE, Outcome.DROPPED_EXPIRED, Outcome.DROPPED_OVERLOAD}
            assert Outcome.ON_TIME in outcomes
            assert pair.there.open == {} and service.engine.waiting == 0 and conserved(service.engine)

    within(60, work)
