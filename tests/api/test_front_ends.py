"""Front ends as processes: the same answers, and what becomes of queries, memory and connections when one is lost."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from stretto.api import front_ends
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.limits import Limits
from stretto.api.rates import RateLimits
from stretto.api.serve_options import ServeOptions
from stretto.api.server import Listen, listening_socket
from stretto.core.errors import StrettoError
from stretto.live.options import ServiceOptions
from tests.api.fronting import RunningFronts, mapped, pid_of
from tests.api.serving import (
    INFER,
    PATIENCE_S,
    PINNED,
    Running,
    binary_body,
    grpc_call,
    images,
    json_body,
    message,
    repository_of,
    values_of,
)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="front ends share a port as Linux can")


def until(condition: Callable[[], bool], what: str) -> None:
    waited, end = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        waited.wait(0.02)


@pytest.fixture(scope="module", params=["thread", "process"])
def fronted(request: pytest.FixtureRequest, repository: Path) -> Iterator[RunningFronts]:
    options = {} if request.param == "thread" else {"executor": "process"}
    with RunningFronts(repository, grpc=True, **options) as running:
        yield running
        running.wait_for_queries(0)
        assert running.missing() == 0


def test_answers_are_those_of_one_process(fronted: RunningFronts, server: Running) -> None:
    for rows in (1, 3):
        body, length = binary_body(images(rows), binary_data_output=True)
        expected = values_of(server.ask("POST", PINNED, body, Inference_Header_Content_Length=length))
        for wire in fronted.wires():
            with wire:
                found = values_of(wire.ask("POST", PINNED, body, Inference_Header_Content_Length=length))
                np.testing.assert_allclose(found, expected, rtol=1e-5)
                as_json = wire.ask("POST", PINNED, json_body(images(rows), priority=2, id="seven"))
                assert as_json.content["id"] == "seven"
                np.testing.assert_allclose(values_of(as_json), expected, rtol=1e-4, atol=1e-6)
                best = [{"name": "probabilities", "parameters": {"classification": 2}}]
                assert len(wire.ask("POST", INFER, json_body(images(rows), best)).content["outputs"][0]["data"]) == (
                    2 * rows
                )


def test_documents_are_those_of_one_process(fronted: RunningFronts, server: Running) -> None:
    paths = ("/v2", "/v2/models/fashion", "/v2/models/fashion/config", "/v2/models/fashion/versions/mlp", "/v2/nothing")
    paths += ("/v2/models/nothing", "/v2/models/fashion/versions/none", "/v2/health/ready", "/v2/models/mnist/ready")
    for wire in fronted.wires():
        with wire:
            for path in paths:
                expected, found = server.ask("GET", path), wire.ask("GET", path)
                assert (found.status, found.body) == (expected.status, expected.body), path
            assert wire.ask("GET", "/metrics").status == wire.ask("POST", "/v2/repository/index").status == 403


def test_feedback_is_refused_where_the_label_may_come_to_another_process(fronted: RunningFronts) -> None:
    body = b'{"feedback": [{"id": "seven", "label": 1}]}'
    replies = [fronted.ask("POST", "/v2/models/fashion/feedback", body, name="management")]
    for wire in fronted.wires():
        with wire:
            replies.append(wire.ask("POST", "/v2/models/fashion/feedback", body))
    assert {reply.status for reply in replies} == {404}
    assert all("where one process answers all clients" in reply.content["error"] for reply in replies)


def test_an_accuracy_that_nobody_knows_is_not_told_by_front_ends(tmp_path: Path) -> None:
    root = repository_of(tmp_path / "models", "fashion")
    (root / "fashion" / "variants" / "linear" / "metrics.json").write_text('{"accuracy": 0.9}')
    with RunningFronts(root, count=1) as running:
        for body, length in (binary_body(images(rows), binary_data_output=True) for rows in (1, 2, 1)):
            reply = running.ask("POST", PINNED, body, Inference_Header_Content_Length=length)
            told = json.loads(reply.body[: int(reply.headers["inference-header-content-length"])])["parameters"]
            assert told["variant"] == "linear" and "expected_accuracy" not in told
        assert running.ask("POST", INFER, json_body(images(), min_accuracy=0.1)).content["model_version"] != "linear"
        metrics = running.ask("GET", "/metrics", name="management").body.decode()
        assert "nan" not in metrics.lower().replace("namespace", "") and "-Inf" not in metrics


def test_what_clients_wish_is_known_to_the_scheduler(fronted: RunningFronts) -> None:
    for number, wire in enumerate(fronted.wires()):
        with wire:
            reply = wire.ask("POST", INFER, json_body(images(), min_accuracy=0.9, client_id=f"phone-{number}"))
            assert reply.content["parameters"]["expected_accuracy"] >= 0.9
            assert wire.ask("POST", INFER, json_body(images(), min_accuracy=0.9999)).status == 404
            hurried = json_body(images()).replace(b'"deadline_ms": 20000.0', b'"deadline_ms": 0.001')
            assert wire.ask("POST", INFER, hurried).reason == "infeasible"
    clients = fronted.ask("GET", "/v2/clients", name="management").content["clients"]
    assert {f"phone-{number}" for number in range(2)} <= {client["client_id"] for client in clients}


def test_grpc(fronted: RunningFronts) -> None:
    ready = grpc_call(fronted, "ModelReady", protocol.ModelReadyRequest(name="fashion"), "grpc")
    assert ready.ready
    config = grpc_call(fronted, "ModelConfig", protocol.ModelConfigRequest(name="fashion"), "grpc").config
    served, ladder = (config.parameters[name].string_value.split(",") for name in ("variants", "ladder"))
    assert served == ladder[:3] == ["linear", "mlp", "cnn_s"] and len(ladder) == 7
    tensor = protocol.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 1, 28, 28])
    request = protocol.ModelInferRequest(model_name="fashion", inputs=[tensor], raw_input_contents=[images().tobytes()])
    request.parameters["deadline_ms"].double_param = 20_000.0
    for _ in range(8):  # each on a connection of its own
        answer = grpc_call(fronted, "ModelInfer", request, "grpc")
        assert list(answer.outputs[0].shape) == [1, 10]


def test_statistics_come_from_the_scheduler(fronted: RunningFronts) -> None:
    (first, second) = fronted.wires()
    with first, second:
        values_of(first.ask("POST", PINNED, json_body(images())))

        stats = second.ask("GET", "/v2/models/fashion/versions/linear/stats").content["model_stats"]
        assert sum(each["inference_count"] for each in stats) > 0
        assert second.ask("GET", "/v2/models/fashion/stats").content["model_stats"]


def test_metrics_are_in_one_place_and_by_front_end(fronted: RunningFronts) -> None:
    for wire in fronted.wires():
        with wire:
            assert wire.ask("POST", INFER, b"{").status == 400

    def told() -> bool:
        return all(
            counts.refused.get("bad_request", 0) > 0 for counts in (slot.counts for slot in fronted.fronts.slots)
        )

    fronted.wait_until(told, "front ends told what they refused")
    metrics = fronted.ask("GET", "/metrics", name="management").body.decode()
    for number in range(2):
        assert f'stretto_requests_refused_total{{front_end="{number}",reason="bad_request"}}' in metrics
        assert f'stretto_front_end_listening{{front_end="{number}"}} 1.0' in metrics
        assert f'stretto_loop_lag_seconds_count{{front_end="{number}"}}' in metrics
    assert 'stretto_requests_open{front_end=""}' in metrics


def test_models_come_and_go_behind_front_ends(fronted: RunningFronts) -> None:
    (first, second) = fronted.wires()
    with first, second:
        assert fronted.ask("POST", "/v2/repository/models/mnist/unload", name="management").status == 200
        for wire in (first, second):
            assert wire.ask("GET", "/v2/models/mnist/ready").status == 503
            body = json_body(images())
            assert wire.ask("POST", "/v2/models/mnist/infer", body).reason == "unavailable"
            values_of(wire.ask("POST", INFER, body))
        assert fronted.ask("POST", "/v2/repository/models/mnist/load", name="management").status == 200
        for wire in (first, second):
            assert wire.ask("GET", "/v2/models/mnist/ready").status == 200
            values_of(wire.ask("POST", "/v2/models/mnist/infer", json_body(images())))


def test_a_variant_that_is_added_is_known_to_front_ends(tmp_path: Path) -> None:
    """Regression: front ends read a repository again for new applications only, and refused the variant by its name."""
    repository = repository_of(tmp_path / "models", "fashion")
    added, aside = tmp_path / "models/fashion/variants/cnn_s", tmp_path / "aside"
    shutil.move(added, aside)
    with RunningFronts(repository, only=()) as running:
        (first, second) = running.wires()
        with first, second:
            for wire in (first, second):
                assert "cnn_s" not in wire.ask("GET", "/v2/models/fashion").content["versions"]
            shutil.move(aside, added)
            assert running.ask("POST", "/v2/repository/models/fashion/load", name="management").status == 200
            for wire in (first, second):
                assert "cnn_s" in wire.ask("GET", "/v2/models/fashion").content["versions"]
                answer = wire.ask("POST", "/v2/models/fashion/versions/cnn_s/infer", json_body(images()))
                assert values_of(answer).size and answer.content["model_version"] == "cnn_s"


def test_front_ends_leave_before_they_stop(repository: Path) -> None:
    with RunningFronts(repository) as running:
        wires = running.wires(2, 2)
        running.call(running.fronts.leave)
        running.run(running.plane.control.settled())
        for looks, asks in (wires[:2], wires[2:]):
            with looks, asks:
                assert looks.ask("GET", "/v2/health/ready").status == 503
                reply = asks.ask("POST", INFER, json_body(images()))
                values_of(reply)
                assert reply.headers["connection"] == "close"  # clients go elsewhere with what they ask next


def test_the_level_of_the_log_reaches_front_ends(fronted: RunningFronts) -> None:
    level = logging.getLogger().level
    all_levels = {"log_info": True, "log_warning": True, "log_error": True}
    try:
        for verbose in (1, 0):
            change = json.dumps(all_levels | {"log_verbose_level": verbose}).encode()
            assert fronted.ask("POST", "/v2/logging", change, name="management").status == 200
            for wire in fronted.wires():
                with wire:
                    until(
                        lambda wire=wire, verbose=verbose: (
                            wire.ask("GET", "/v2/logging").content["log_verbose_level"] == verbose
                        ),
                        "the level is known there",
                    )
    finally:
        logging.getLogger().setLevel(level)


# -- when one is lost ------------------------------------------------------------------------------------------------


def test_a_lost_front_end_takes_its_own_with_it_and_nothing_else(repository: Path) -> None:
    before = others_mapped()
    with RunningFronts(repository) as running:
        assert mapped() == before + len(running.fronts.slots)
        descriptors = len(os.listdir("/proc/self/fd"))
        for times in (1, 2):
            wires = running.wires(5, 3)
            with running.gate:
                for wire in wires:
                    wire.send(message("POST", INFER, json_body(images())))
                running.wait_for_queries(8)
                ended = running.counts()[1]
                running.kill(0)
                running.wait_for_queries(3)  # also those that run: nobody waits for them any more
                assert running.counts()[1]["dropped_cancelled"] == ended["dropped_cancelled"] + 5
                assert all(wire.is_closed() for wire in wires[:5])
                running.gate.is_open.set()
                for wire in wires[5:]:
                    values_of(wire.reply())
            for wire in wires:
                wire.socket.close()
            running.wait_until_back(0, times)
            for wire in running.wires():
                with wire:
                    values_of(wire.ask("POST", INFER, json_body(images())))
            assert running.missing() == 0
        running.wait_until(lambda: mapped() == before + len(running.fronts.slots), "one memory for each front end")
        running.wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "no descriptor is left behind")


def test_a_front_end_that_hangs_is_ended_and_started_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queries are withdrawn, its memory is given back, and those of the other are answered."""
    monkeypatch.setattr(front_ends, "SILENT_S", 2.0)
    before = others_mapped()
    with RunningFronts(repository) as running:
        wires = running.wires(4, 2)
        hanging = pid_of(running.fronts.slots[0])
        with running.gate:
            for wire in wires:
                wire.send(message("POST", INFER, json_body(images())))
            running.wait_for_queries(6)
            ended = running.counts()[1]
            os.kill(hanging, signal.SIGSTOP)
            running.wait_for_queries(2)
            assert running.counts()[1]["dropped_cancelled"] == ended["dropped_cancelled"] + 4
            running.gate.is_open.set()
            for wire in wires[4:]:
                values_of(wire.reply())
        for wire in wires:
            wire.socket.close()
        running.wait_until_back(0)
        assert not os.path.exists(f"/proc/{hanging}") and running.fronts.slots[1].restarts == 0
        for wire in running.wires():
            with wire:
                values_of(wire.ask("POST", INFER, json_body(images())))
        running.wait_until(lambda: mapped() == before + len(running.fronts.slots), "one memory for each front end")
        assert running.missing() == 0


def others_mapped() -> int:
    """Of servers that other tests still have."""
    gc.collect()
    return mapped()


def test_a_worker_process_lets_go_of_a_lost_front_end(repository: Path) -> None:
    with RunningFronts(repository, executor="process") as running:
        executor = running.service.engine.crew.members[0].executor

        def of_worker() -> int:
            return mapped(executor._process.pid)  # type: ignore[attr-defined]

        for wire in running.wires():
            with wire:
                values_of(wire.ask("POST", INFER, json_body(images())))
        assert of_worker() == 2
        running.kill(1)
        running.wait_until_back(1)
        running.wait_until(lambda: of_worker() == 1, "the worker sees its memory no more")
        for wire in running.wires():
            with wire:
                values_of(wire.ask("POST", INFER, json_body(images())))
        assert of_worker() == 2 and running.missing() == 0


def test_under_load_only_its_own_connections_fail(repository: Path) -> None:
    expected: dict[int, np.ndarray] = {}
    with RunningFronts(repository, executor="process") as running:
        body = [binary_body(images(2, seed), binary_data_output=True) for seed in range(6)]
        with running.wire() as wire:
            for seed, (content, length) in enumerate(body):
                reply = wire.ask("POST", PINNED, content, Inference_Header_Content_Length=length)
                expected[seed] = values_of(reply)
        stop, wrong, broken, answered = threading.Event(), [], [], [0] * 6

        def ask(seed: int) -> None:
            content, length = body[seed]
            while not stop.is_set():
                try:
                    with running.wire() as wire:
                        while not stop.is_set():
                            reply = wire.ask("POST", PINNED, content, Inference_Header_Content_Length=length)
                            np.testing.assert_allclose(values_of(reply), expected[seed], rtol=1e-4, atol=1e-6)
                            answered[seed] += 1
                except (OSError, EOFError):
                    broken.append(seed)
                except AssertionError as error:
                    wrong.append(str(error))
                    return

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for number in (0, 1):
            running.wait_until(lambda: min(answered) >= 5, "everybody is answered")
            running.kill(number)
            running.wait_until_back(number)
            answered[:] = [0] * 6
        running.wait_until(lambda: min(answered) >= 5, "everybody is answered after all")
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not wrong, wrong[0]
        assert broken  # those that were on the front ends that were ended
        running.wait_for_queries(0)
        assert running.missing() == 0


def test_memory_of_withdrawn_queries_is_used_anew_without_harm(repository: Path) -> None:
    """A batch may still read rows of a query that was withdrawn while another request's rows lie there already."""
    with RunningFronts(repository, executor="process") as running:
        bodies = [binary_body(images(4, seed), binary_data_output=True) for seed in range(20)]
        heads = {"Inference_Header_Content_Length": bodies[0][1]}
        with running.wire() as wire:
            expected = [values_of(wire.ask("POST", PINNED, content, **heads)) for content, _ in bodies]
        for _ in range(5):
            wires = [running.wire() for _ in bodies]
            for wire, (content, _) in zip(wires, bodies, strict=True):
                wire.send(message("POST", PINNED, content, **heads))
            for place, wire in enumerate(wires):
                if place % 2:
                    wire.socket.close()
            for place, wire in enumerate(wires):
                if not place % 2:
                    with wire:
                        np.testing.assert_allclose(values_of(wire.reply()), expected[place], rtol=1e-4, atol=1e-6)
        running.wait_for_queries(0)
        assert running.missing() == 0


def test_a_full_front_end_refuses_and_recovers(repository: Path) -> None:
    limits = replace(Limits(), memory_bytes=2_000_000, message_bytes=200_000)
    with RunningFronts(repository, limits=limits) as running:
        assert running.counts_of()[0].bytes_in_flight_limit in (0, 500_000)
        body, length = binary_body(images(16), binary_data_output=True)  # 50 kB
        one = message("POST", PINNED, body, Inference_Header_Content_Length=length)
        wires = [running.wire() for _ in range(40)]
        with running.gate:
            for wire in wires:
                wire.send(one)
            running.wait_until(
                lambda: sum(slot.counts.refused.get("overloaded", 0) for slot in running.fronts.slots) > 0,
                "there is no room left",
            )
            running.wait_until(lambda: running.service.engine.waiting > 0, "what was taken in waits for the gate")
        statuses = [wire.reply().status for wire in wires]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 4  # the system deals out connections
        running.wait_for_queries(0)
        for wire in wires:
            wire.socket.close()
        for wire in running.wires():
            with wire:
                assert wire.ask("POST", PINNED, body, Inference_Header_Content_Length=length).status == 200
        assert running.missing() == 0


# -- ports, and what is refused --------------------------------------------------------------------------------------


def test_nobody_else_gets_the_port(repository: Path) -> None:
    with RunningFronts(repository) as running:
        _, port = running.address()
        with pytest.raises(StrettoError, match="cannot listen"):
            listening_socket("127.0.0.1", port)
        again = RunningFronts(repository)
        again._listen = replace(again._listen, http_port=port)
        with pytest.raises(StrettoError, match="cannot listen"), again:
            pass


@pytest.mark.parametrize("host", ["::1", "localhost", "0.0.0.0"])
def test_other_addresses(repository: Path, host: str) -> None:
    if host == "::1":
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    running = RunningFronts(repository, grpc=True)
    running._listen = replace(running._listen, host=host)
    with running:
        values_of(running.ask("POST", INFER, json_body(images())))
        _, port = running.address("grpc")
        with grpc.insecure_channel(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        (Listen(rates=RateLimits(requests_per_s=5)), "limits of clients need one front end"),
        (Listen(shared_memory=True), "shared memory with clients needs one front end"),
        (Listen(http_port=None, grpc_port=None), "nothing to listen on"),
        (Listen(limits=replace(Limits(), memory_bytes=20_000_000)), "give more"),
    ],
)
def test_what_several_front_ends_cannot_do_is_refused(listen: Listen, words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        ServeOptions(ServiceOptions("zoo:fashion"), listen, front_ends=4)
    with pytest.raises(StrettoError, match="1 to 64"):
        ServeOptions(ServiceOptions("zoo:fashion"), front_ends=65)


def test_a_front_end_that_cannot_start_is_told_of(repository: Path, tmp_path: Path) -> None:
    running = RunningFronts(repository)
    running._listen = replace(running._listen, host="192.0.2.1")
    with pytest.raises(StrettoError, match=r"192\.0\.2\.1"), running:
        pass


def test_a_front_end_says_why_it_cannot_start(repository: Path, tmp_path: Path) -> None:
    running = RunningFronts(repository)
    running.front_repository = str(tmp_path / "none")
    with pytest.raises(StrettoError, match="none"), running:
        pass


def test_processes_end_with_the_server(repository: Path) -> None:
    before = others_mapped()
    with RunningFronts(repository) as running:
        pids = [pid_of(slot) for slot in running.fronts.slots]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert others_mapped() == before
