"""The server's half of a client's network: what is left of an SLO, acknowledgements, and what a client is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.api.errors import ApiError
from stretto.api.limits import Limits
from stretto.api.messages import InferRequest, InputTensor
from stretto.api.network import left_ns, reported, told_parameters
from stretto.api.plane import Plane
from stretto.core.client import HEADROOM, Clients, Place, Told
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Plan, Route, RouteRule
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.core.view import View
from stretto.live.options import ServiceOptions
from stretto.live.recorder import Journal, recording
from stretto.live.service import Service
from stretto.live.threads import ThreadExecutor
from stretto.repository.read import read_repository
from stretto.sim.replay import replay
from tests.api.serving import DEADLINE_MS, INFER, PATIENCE_S, Running, Wire, binary_body, images, json_body, message

NUMBERS = ("slo_ms", "waited_ms", "bandwidth", "rtt_ms", "rate")


# -- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, "fast", True, float("nan"), 10**400, [1]])
def test_a_number_that_is_none_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError, match=f"{name} must be a number from 0 to"):
        reported({name: value})


def test_an_slo_of_nothing_is_refused() -> None:
    with pytest.raises(ApiError, match="slo_ms must be above 0"):
        reported({"slo_ms": 0})


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NUMBERS), st.floats(0, 1e15) | st.integers(0, 10**15)), st.integers(0, 10**9))
def test_whatever_is_said_leaves_a_time_that_is_bounded(parameters: dict[str, float], sent_bytes: int) -> None:
    try:
        said = reported(parameters)
    except ApiError:
        return
    left = left_ns(10 * NS_PER_S, said, sent_bytes, None, said.round_trip_ns or 0)
    assert 1 <= left <= 10 * NS_PER_S


def test_what_is_left_of_an_slo() -> None:
    said = reported({"slo_ms": 100, "waited_ms": 5, "bandwidth": 1e6})
    assert said.is_end_to_end and not reported({"bandwidth": 1e6}).is_end_to_end
    slo_ns = said.slo_ns or 0
    assert left_ns(slo_ns, said, 20_000, None, 10 * NS_PER_MS) == 65 * NS_PER_MS  # 20 ms at 1 MB/s
    assert left_ns(slo_ns, said, 20_000, 30 * NS_PER_MS, 10 * NS_PER_MS) == 55 * NS_PER_MS  # as it was seen coming
    assert left_ns(slo_ns, said, 20_000, 300 * NS_PER_MS, 0) == 1


def test_what_a_client_is_told_is_text() -> None:
    assert told_parameters(Told()) == {}
    assert told_parameters(Told("px20", (1, 20, 20))) == {"input_size": "1,20,20", "mapped": "px20"}


# -- HTTP ------------------------------------------------------------------------------------------------------------


def parameters_of(wire: Wire, **parameters: Any) -> dict[str, Any]:
    body, length = binary_body(images(), **parameters)
    reply = wire.ask("POST", INFER, body, Inference_Header_Content_Length=length)
    assert reply.status == 200, reply.body
    text = reply.body[: int(reply.headers.get("inference-header-content-length", len(reply.body)))]
    found: dict[str, Any] = json.loads(text)["parameters"]
    return found


def test_the_deadline_is_what_is_left_when_the_frame_has_come(server: Running) -> None:
    """Also of the very first request at an address, which takes another way through the server."""
    with server.wire() as wire:
        for _ in range(3):
            plain = parameters_of(wire, slo_ms=DEADLINE_MS)["slack_ms"]
            less = parameters_of(wire, slo_ms=DEADLINE_MS, waited_ms=5_000, rtt_ms=1_000)["slack_ms"]
            assert 5_000 < plain - less < 7_000


def test_a_body_that_is_long_on_its_way_has_less_time_left(server: Running) -> None:
    with server.wire() as wire:
        parameters_of(wire)  # from here on the address is known
        body, length = binary_body(images(), slo_ms=DEADLINE_MS)
        data = message("POST", INFER, body, Inference_Header_Content_Length=length)
        wire.send(data[:500])
        time.sleep(0.3)
        wire.send(data[500:])
        slow = wire.reply().content["parameters"]["slack_ms"]
        wire.send(data)
        quick = wire.reply().content["parameters"]["slack_ms"]
    assert 250 < quick - slow < 2_000


def test_what_is_too_late_already_is_dropped_at_once(server: Running) -> None:
    reply = server.ask("POST", INFER, json_body(images(), slo_ms=50, waited_ms=60, client_id="late"))
    assert (reply.status, reply.content["reason"]) in ((412, "infeasible"), (504, "expired"))


def test_an_acknowledgement_comes_before_the_answer_and_only_if_asked_for(server: Running) -> None:
    data = message("POST", INFER, json_body(images()), Stretto_Ack="1")
    with server.wire() as wire:
        for _ in range(3):  # the first takes the way of tasks, the others the short one
            with server.gate:
                wire.send(data)
                assert wire.reply().status == 102
                server.wait_for_queries(1)
            assert wire.reply().status == 200
        assert wire.ask("POST", INFER, json_body(images())).status == 200
        assert wire.ask("POST", INFER, json_body(images()), Stretto_Ack="0").status == 200


def test_acknowledgements_keep_the_order_of_pipelined_requests(server: Running) -> None:
    acknowledged = message("POST", INFER, json_body(images(), id="a"), Stretto_Ack="1")
    plain = message("POST", INFER, json_body(images(), id="b"))
    with server.wire() as wire:
        wire.send(acknowledged + plain + acknowledged + acknowledged + plain)
        replies = [wire.reply() for _ in range(8)]
    assert [reply.status for reply in replies] == [102, 200, 200, 102, 200, 102, 200, 200]
    assert [reply.content["id"] for reply in replies if reply.status == 200] == ["a", "b", "a", "a", "b"]


def test_what_is_refused_is_acknowledged_once_it_was_read(server: Running) -> None:
    with server.wire() as wire:
        wire.ask("POST", INFER, json_body(images()))
        wire.send(message("POST", INFER, b"{", Stretto_Ack="1"))
        assert [wire.reply().status, wire.reply().status] == [102, 400]
        wire.send(message("POST", INFER, json_body(images()), Stretto_Ack="1"))
        assert [wire.reply().status, wire.reply().status] == [102, 200]


def test_http_1_0_knows_no_informational_answers(server: Running) -> None:
    data = message("POST", INFER, json_body(images()), Stretto_Ack="1").replace(b"HTTP/1.1", b"HTTP/1.0")
    for _ in range(2):
        with server.wire() as wire:
            wire.send(data)
            assert [reply.status for reply in wire.replies()] == [200]


def test_clients_are_listed_for_management_only(server: Running) -> None:
    numbers = {"bandwidth": 2e6, "rtt_ms": 8, "rate": 1e6, "slo_ms": DEADLINE_MS}
    with server.wire() as wire:
        for _ in range(3):
            parameters_of(wire, client_id="camera 7", **numbers)
    assert server.ask("GET", "/v2/clients").status == 403
    listed = server.ask("GET", "/v2/clients", name="management").content
    (client,) = [each for each in listed["clients"] if each["client_id"] == "camera 7"]
    assert client["bandwidth"] == pytest.approx(2e6) and client["rtt_ms"] == 8 and client["said_rate"] == 1e6
    assert 1 <= client["rate"] <= 3 * 4  # as counted
    assert listed["count"] >= len(listed["clients"])


# -- told, and held to a share ---------------------------------------------------------------------------------------


class Mapping:
    """Clients by name onto one of two lanes: as a planner that maps clients would."""

    looks_at_evidence = False

    def __init__(self) -> None:
        self.target_of: dict[str, int] = {}
        self.asked = 0

    def __call__(self, view: View) -> Plan:
        self.asked += 1
        clients = view.clients()
        targets = [0] * (1 + max((client.slot for client in clients), default=0))
        for client in clients:
            targets[client.slot] = self.target_of.get(client.identity, 0)
        first, *_, last = view.deployment.variants_of(0)

        def lane(name: str, variant: int, capacity: int = 1000) -> Lane:
            late = Late.DROP_WHEN_DISPATCHED
            return Lane(name, (0,), Fixed(variant), Order.FIRST_COME, Eager(1), late, capacity=capacity)

        lanes = (lane("first", first), lane("last", last), lane("nobody", first, capacity=0))
        return Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1, 2), targets=tuple(targets)),))


@pytest.fixture(scope="module")
def mapped(repository: Path) -> Iterator[tuple[Running, Mapping]]:
    """A server of one application whose clients are mapped."""
    planner = Mapping()
    with Running(repository, only=("fashion/linear", "fashion/cnn_s"), limits=Limits(client_s=1.0)) as running:
        running.service.session.planner = planner
        running.call(lambda: setattr(running.service.replanner, "period_s", 0.5))
        running.wait_until(lambda: planner.asked > 1, "it is asked")
        yield running, planner


def test_a_mapped_client_is_told_its_variant_with_every_answer(mapped: tuple[Running, Mapping]) -> None:
    server, planner = mapped
    planner.target_of = {"high": 0, "low": 1}
    server.call(lambda: setattr(server.service.replanner, "period_s", 60.0))  # so that only the change is a reason

    def are_told() -> bool:
        told = {client.identity: client.told.variant for client in server.service.clients.all()}
        return told.get("high") == "cnn_s" and told.get("low") == "linear"

    try:
        with server.wire() as wire:
            for name in ("high", "low"):
                parameters_of(wire, client_id=name)
            begun = time.monotonic()
            server.wait_until(are_told, "a new client is a reason to plan")
            assert time.monotonic() - begun < 5
            told = [parameters_of(wire, client_id=name) for name in ("high", "low")]
    finally:
        server.call(lambda: setattr(server.service.replanner, "period_s", 0.5))
    assert [each["mapped"] for each in told] == ["cnn_s", "linear"]
    assert [each["variant"] for each in told] == ["cnn_s", "linear"]
    assert all(each["input_size"] == "1,28,28" for each in told)


def test_one_that_is_mapped_nowhere_hears_so_with_a_refusal(mapped: tuple[Running, Mapping]) -> None:
    server, planner = mapped
    planner.target_of = {"nowhere": 2}
    with server.wire() as wire:
        parameters_of(wire, client_id="nowhere")
        server.wait_until(
            lambda: any(client.told == Told("", (1, 28, 28)) for client in server.service.clients.all()), "it is placed"
        )
        reply = wire.ask("POST", INFER, json_body(images(), client_id="nowhere"))
    assert reply.status == 429 and reply.content["parameters"] == {"input_size": "1,28,28", "mapped": ""}


def test_one_that_vanished_is_forgotten(mapped: tuple[Running, Mapping]) -> None:
    server, _ = mapped
    with server.wire() as wire:
        parameters_of(wire, client_id="brief")
    server.wait_until(
        lambda: all(client.identity != "brief" for client in server.service.clients.all()), "it is forgotten"
    )


def test_who_floods_a_shared_lane_is_refused_what_is_beyond_its_rate(mapped: tuple[Running, Mapping]) -> None:
    """A liar says one query a second and sends as many as it can; an honest client beside it loses nothing."""
    server, planner = mapped
    planner.target_of = {"honest": 1, "liar": 1}
    statuses: dict[str, list[int]] = {"honest": [], "liar": []}
    bodies = {name: json_body(images(), client_id=name, rate=1, slo_ms=DEADLINE_MS) for name in statuses}
    with server.wire() as honest, server.wire() as liar:
        began, asked = time.monotonic(), planner.asked
        while planner.asked < asked + 3 or time.monotonic() - began < 1.5:  # planned for, with rates that were counted
            assert time.monotonic() - began < PATIENCE_S, "they are not planned for"
            for name, wire in (("honest", honest), ("liar", liar)):  # who says nothing for a second is forgotten
                assert wire.ask("POST", INFER, bodies[name]).status == 200
            time.sleep(0.1)
        server.wait_until(lambda: len(server.service.clients) == 2, "those of earlier tests are forgotten")
        server.call(lambda: setattr(server.service.replanner, "period_s", 60.0))  # nobody is asked meanwhile
        refused_before = server.plane.refused.get("overloaded", 0)  # by earlier tests
        try:
            with server.gate:  # so that something waits
                backlog = [server.wire() for _ in range(60)]
                for wire in backlog:
                    wire.send(message("POST", INFER, bodies["liar"]))
                server.wait_until(
                    lambda: server.plane.refused.get("overloaded", 0) >= refused_before + 40, "the liar is refused"
                )
                honest.send(message("POST", INFER, bodies["honest"]))
                time.sleep(0.2)
                waiting = server.waiting
            statuses["honest"] = [honest.reply().status]
            statuses["liar"] = [wire.reply().status for wire in backlog]
        finally:
            server.call(lambda: setattr(server.service.replanner, "period_s", 0.5))
            for wire in backlog:
                wire.socket.close()
    refused = statuses["liar"].count(429)
    assert statuses["honest"] == [200]
    assert refused >= 40 and refused + statuses["liar"].count(200) == 60
    assert waiting <= 21


def test_the_door_goes_by_what_was_measured() -> None:
    """Half a second's worth of the planned rate, with its headroom, whatever the client says of itself."""
    clients = Clients()
    slot = clients.slot_of(0, "liar", "fashion")
    for frame in range(11):
        clients.slot_of(frame * 100 * NS_PER_MS, "liar", "fashion")
        clients.asked(frame * 100 * NS_PER_MS, slot, said_rate=1e9)
    (seen,) = clients.all(NS_PER_S)
    assert seen.rate == pytest.approx(10, abs=1.5)
    clients.planned((seen,), {slot: Place(Told("v", (1,)), 0, True)})
    let_in = 0
    while clients.admits(NS_PER_S, slot):
        clients.admitted(NS_PER_S, slot)
        let_in += 1
    assert let_in == pytest.approx(0.5 * 10 * HEADROOM, abs=2)


def test_numbers_of_many_clients_are_heard_quickly() -> None:
    clients = Clients()
    begun = time.perf_counter()
    for number in range(2_000):
        slot = clients.slot_of(number * NS_PER_MS, str(number % 100), "fashion")
        clients.asked(number * NS_PER_MS, slot, bytes_per_s=1e6, delay_ns=5, frame_ratio=1.0)
    assert (time.perf_counter() - begun) / 2_000 < 200e-6
    assert np.isfinite([client.rate for client in clients.all()]).all()


def test_plans_that_were_made_for_clients_are_made_again_from_the_log(tmp_path: Path) -> None:
    """The log holds the clients that the planner saw, so that the simulator maps them the same way."""
    path = tmp_path / "events.jsonl"

    async def work(journal: Journal) -> int:
        options = ServiceOptions("zoo:fashion_resolution", workers=2, planner="jellyfish", reload_s=0)
        service = Service(options, read_repository(options.repository), ThreadExecutor, journal)
        await service.start()
        plane = Plane(service)
        while not service.is_ready():
            await asyncio.sleep(0.01)
        for number in range(120):
            name = f"camera {number % 3}"
            parameters = {"client_id": name, "slo_ms": 2_000, "waited_ms": 1, "bandwidth": 1e5 * (1 + number % 3)}
            tensor = InputTensor("input", "FP32", np.zeros((1, 1, 16, 16), np.float32))
            with contextlib.suppress(ApiError):  # a busy machine may be late
                await plane.infer(InferRequest("fashion_resolution", [tensor], parameters=parameters, sent_bytes=1500))
            await asyncio.sleep(0.02)
        known = len(service.clients)
        await service.stop()
        return known

    with recording(path) as journal:
        assert asyncio.run(work(journal)) == 3
    seen = [json.loads(line) for line in path.read_text().splitlines()]
    planned = [line for line in seen if line[0] == "planned"]
    assert any(line[7] for line in planned)
    result = replay(path)
    assert result.is_identical, result.differences
    assert result.plans >= 2


def test_who_floods_a_lane_of_all_cannot_keep_others_out(repository: Path) -> None:
    """No plan maps clients here: the flood fills its share of the places, and the others find theirs."""
    with Running(repository, only=("fashion/linear",), planner="clockwork") as server:
        flood = [server.wire() for _ in range(150)]
        others = [(server.wire(), name) for name in ("one", "two", "three") * 3]
        body = {
            name: json_body(images(), client_id=name, slo_ms=DEADLINE_MS) for name in ("flood", "one", "two", "three")
        }
        try:
            with server.gate:
                plan = server.call(lambda: server.service.engine.generation.dispatcher.plan)
                lanes = [replace(lane, capacity=40) for lane in plan.lanes]
                narrow = replace(plan, lanes=tuple(lanes))
                server.call(lambda: server.service.engine.generation.dispatcher.adopt(time.monotonic_ns(), narrow))
                server.call(server.service.replanner.stop)
                for wire, name in others[:3]:
                    wire.send(message("POST", INFER, body[name]))
                server.wait_for_queries(3)
                for wire in flood:
                    wire.send(message("POST", INFER, body["flood"]))
                server.wait_until(lambda: server.plane.refused.get("overloaded", 0) > 100, "most of it is refused")
                before = server.waiting
                for wire, name in others[3:]:
                    wire.send(message("POST", INFER, body[name]))
                server.wait_for_queries(before + 6)
                waiting = server.waiting
            assert [wire.reply().status for wire, _ in others] == [200] * 9
            assert [wire.reply().status for wire in flood].count(200) <= 31 and waiting <= 40, "nine of forty places"
        finally:
            for wire in (*flood, *(wire for wire, _ in others)):
                wire.socket.close()
        server.wait_until(lambda: server.service.clients._asking == 0, "nobody has anything open")
