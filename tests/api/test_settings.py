"""Log and trace settings by Triton's names: read everywhere, changed by management only, over HTTP and gRPC."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from stretto.api.errors import ApiError
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.logs import set_level
from stretto.api.settings import log_settings, trace_settings, update_log_settings, update_trace_settings
from stretto.api.tracing import Sampling
from tests.api.serving import PINNED, Reply, Running, grpc_call, images, json_body

NOT_TRACED = {
    "trace_level": ["OFF"],
    "trace_rate": "1",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "opentelemetry",
}


@pytest.fixture(autouse=True)
def restored_level() -> Iterator[None]:
    """The level of the log is the whole process's."""
    before = logging.getLogger().level
    set_level("info")
    yield
    logging.getLogger().setLevel(before)


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[Running]:
    with Running(repository, grpc=True) as running:
        yield running


# -- the log ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"log_verbose_level": 1}, logging.DEBUG),
        ({"log_verbose_level": 4, "log_info": True}, logging.DEBUG),
        ({"log_info": False}, logging.WARNING),
        ({"log_info": False, "log_warning": False}, logging.ERROR),
        ({"log_info": True, "log_warning": None, "log_file": "", "log_format": "text"}, logging.INFO),
        ({"log_error": True, "log_verbose_level": 0}, logging.INFO),
    ],
)
def test_the_level_of_the_log(changes: dict[str, Any], level: int) -> None:
    found = update_log_settings(changes)
    assert logging.getLogger().level == level
    assert found == log_settings()
    assert found["log_info"] == (level <= logging.INFO) and found["log_warning"] == (level <= logging.WARNING)
    assert found["log_verbose_level"] == int(level == logging.DEBUG)


@pytest.mark.parametrize(
    "changes",
    [
        {"log_error": False},
        {"log_warning": False},
        {"log_verbose_level": 1, "log_info": False},
        {"log_verbose_level": -1},
        {"log_verbose_level": True},
        {"log_verbose_level": 2**31},
        {"log_verbose_level": "1"},
        {"log_info": "yes"},
        {"log_info": 0},
        {"log_file": "/tmp/log"},
        {"log_format": "ISO8601"},
        {"no_such_setting": 1},
        {"log_info": False, "log_file": "/tmp/log"},
    ],
)
def test_what_the_log_cannot_do_is_refused_and_changes_nothing(changes: dict[str, Any]) -> None:
    before = log_settings()
    with pytest.raises(ApiError) as refused:
        update_log_settings(changes)
    assert len(refused.value.message) > 20
    assert log_settings() == before


# -- traces ----------------------------------------------------------------------------------------------------------


def spans() -> Any:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="an extra")
    from stretto.api.tracing import Tracing

    return Tracing(memory.InMemorySpanExporter())


def test_without_traces_there_is_nothing_to_set() -> None:
    assert trace_settings(None) == NOT_TRACED
    same = {"trace_level": ["OFF"], "trace_rate": "1", "trace_count": None, "trace_file": [""]}
    assert update_trace_settings(None, same) == NOT_TRACED
    for changes in ({"trace_level": ["TIMESTAMPS"]}, {"trace_rate": "7"}, {"trace_count": 3}):
        with pytest.raises(ApiError, match="--traces"):
            update_trace_settings(None, changes)


def test_settings_of_all_and_of_one_application() -> None:
    tracing = spans()
    assert trace_settings(tracing)["trace_level"] == ["TIMESTAMPS"]
    assert update_trace_settings(tracing, {"trace_rate": "3"})["trace_rate"] == "3"
    assert trace_settings(tracing, "fashion")["trace_rate"] == "3", "it has none of its own"
    update_trace_settings(tracing, {"trace_level": "OFF", "trace_count": ["9"]}, "fashion")
    update_trace_settings(tracing, {"trace_rate": "4"})
    own = trace_settings(tracing, "fashion")
    assert (own["trace_level"], own["trace_rate"], own["trace_count"]) == (["OFF"], "3", "9")
    update_trace_settings(tracing, dict.fromkeys(("trace_level", "trace_rate", "trace_count")), "fashion")
    update_trace_settings(tracing, {"trace_rate": "5"})
    assert trace_settings(tracing, "fashion")["trace_rate"] == "5", "it has none of its own any more"
    assert update_trace_settings(tracing, {"trace_rate": None})["trace_rate"] == "1"
    tracing.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_level": ["TENSORS"]},
        {"trace_level": ["TIMESTAMPS", "TENSORS"]},
        {"trace_level": [["OFF"]]},
        {"trace_rate": "0"},
        {"trace_rate": "-1"},
        {"trace_rate": "1.5"},
        {"trace_rate": "²"},
        {"trace_rate": ["1", "2"]},
        {"trace_rate": True},
        {"trace_rate": {"a": 1}},
        {"trace_rate": "9" * 5000},
        {"trace_rate": str(2**31)},
        {"trace_count": "-2"},
        {"trace_file": "/tmp/trace.json"},
        {"trace_mode": "triton"},
        {"log_frequency": "10"},
        {"no_such_setting": "1"},
        {"trace_rate": "7", "trace_file": "x"},
    ],
)
def test_what_traces_cannot_do_is_refused_and_changes_nothing(changes: dict[str, Any]) -> None:
    tracing = spans()
    before = trace_settings(tracing)
    with pytest.raises(ApiError):
        update_trace_settings(tracing, changes)
    assert trace_settings(tracing) == before
    tracing.close()


@pytest.mark.parametrize(
    ("sampling", "chosen"),
    [
        (Sampling(), "1111111"),
        (Sampling(every=3), "1001001"),
        (Sampling(left=2), "1100000"),
        (Sampling(every=2, left=2), "1010000"),
        (Sampling(left=0), "0000000"),
        (Sampling(is_on=False), "0000000"),
    ],
)
def test_which_requests_have_spans(sampling: Sampling, chosen: str) -> None:
    assert "".join(str(int(sampling.chooses())) for _ in chosen) == chosen


def test_spans_are_made_as_they_are_set(running: Running) -> None:
    tracing = spans()
    running.plane.tracing = tracing
    try:
        post(running, "/v2/models/fashion/trace/setting", {"trace_rate": "2"})
        for _ in range(4):
            assert running.ask("POST", PINNED, json_body(images())).status == 200
        assert tracing.made == 2 * 3, "a request, its queue and its run"
        post(running, "/v2/models/fashion/trace/setting", {"trace_level": ["OFF"]})
        assert running.ask("POST", PINNED, json_body(images())).status == 200
        assert tracing.made == 2 * 3
    finally:
        running.plane.tracing = None
        tracing.close()


# -- who may ---------------------------------------------------------------------------------------------------------


def post(running: Running, path: str, content: Any, name: str = "management") -> Reply:
    return running.ask("POST", path, json.dumps(content).encode(), name=name)


def test_http(running: Running) -> None:
    for name in ("http", "management"):
        assert running.ask("GET", "/v2/logging", name=name).content == log_settings()
        assert post(running, "/v2/logging", {}, name).content == log_settings()
        assert running.ask("GET", "/v2/trace/setting", name=name).content == NOT_TRACED
        assert running.ask("GET", "/v2/models/fashion/trace/setting", name=name).content == NOT_TRACED
        assert running.ask("GET", "/v2/models/nobody/trace/setting", name=name).status == 404
    assert post(running, "/v2/logging", {"log_verbose_level": 1}, "http").reason == "forbidden"
    assert post(running, "/v2/trace/setting", {"trace_rate": "1"}, "http").reason == "forbidden"
    assert post(running, "/v2/models/fashion/trace/setting", {"trace_rate": "1"}, "http").reason == "forbidden"
    assert logging.getLogger().level == logging.INFO
    assert post(running, "/v2/logging", {"log_verbose_level": 1}).content["log_verbose_level"] == 1
    assert post(running, "/v2/trace/setting", {"trace_rate": "7"}).reason == "bad_request"
    assert post(running, "/v2/logging", [1]).reason == "bad_request"
    assert running.ask("DELETE", "/v2/logging", name="management").status == 405
    assert running.ask("GET", "/v2/trace", name="management").status == 404


def call(running: Running, name: str, request: Any, listener: str = "management grpc") -> Any:
    return grpc_call(running, name, request, listener)


def test_grpc(running: Running) -> None:
    wanted = protocol.LogSettingsRequest()
    wanted.settings["log_verbose_level"].uint32_param = 2
    trace = protocol.TraceSettingRequest(model_name="fashion")
    trace.settings["trace_level"].value.append("OFF")
    for listener in ("grpc", "management grpc"):
        found = call(running, "LogSettings", protocol.LogSettingsRequest(), listener).settings
        assert found["log_info"].bool_param and found["log_verbose_level"].uint32_param == 0
        assert found["log_format"].string_param == "text" and set(found) == set(log_settings())
        told = call(running, "TraceSetting", protocol.TraceSettingRequest(model_name="fashion"), listener).settings
        assert {key: list(value.value) for key, value in told.items()} == {
            key: value if isinstance(value, list) else [value] for key, value in NOT_TRACED.items()
        }
    for name, request in (("LogSettings", wanted), ("TraceSetting", trace)):
        with pytest.raises(grpc.RpcError) as refused:
            call(running, name, request, "grpc")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert call(running, "LogSettings", wanted).settings["log_verbose_level"].uint32_param == 1
    assert list(call(running, "TraceSetting", trace).settings["trace_level"].value) == ["OFF"]
    with pytest.raises(grpc.RpcError) as refused:
        call(running, "TraceSetting", protocol.TraceSettingRequest(model_name="nobody"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
