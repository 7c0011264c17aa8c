"""A bad model beside a sound one, as clients and operators see it: readiness, the index, metrics, and what is told."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import grpc
import pytest

from stretto.api.grpc import open_inference_pb2 as protocol
from tests.api.serving import Running
from tests.live.bad_repository import add
from tests.live.real import ROOT
from tests.repository.build import KIND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
INFER = {"inputs": [{"name": "input", "shape": [1, 1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}


def is_ready_by_grpc(server: Running, application: str) -> bool:
    host, port = server.address("grpc")
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            request_serializer=protocol.ModelReadyRequest.SerializeToString,
            response_deserializer=protocol.ModelReadyResponse.FromString,
        )
        return bool(call(protocol.ModelReadyRequest(name=application), timeout=30).ready)


def test_a_bad_model_is_told_of_and_the_sound_one_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "bad", "CrashAtLoad")
    with Running(root, only=(), kind=KIND, grpc=True) as server:

        def status(path: str) -> int:
            return server.ask("GET", path).status

        assert status("/v2/health/ready") == 200
        assert (status("/v2/models/good/ready"), status("/v2/models/bad/ready")) == (200, 503)
        assert is_ready_by_grpc(server, "good") and not is_ready_by_grpc(server, "bad")
        assert server.ask("POST", "/v2/models/good/infer", json.dumps(INFER).encode()).status == 200
        refused = server.ask("POST", "/v2/models/bad/infer", json.dumps(INFER).encode())
        assert refused.status == 503 and "not served at present" in refused.content["error"]
        assert "signal" not in refused.content["error"]  # clients hear nothing of the inside
        (row,) = [
            row for row in server.ask("POST", "/v2/repository/index", name="management").content if row["name"] == "bad"
        ]
        assert row["state"] == "UNAVAILABLE" and "signal 11" in row["reason"] and "tried again in" in row["reason"]
        text = server.ask("GET", "/metrics", name="management").body.decode()
        labels = 'application="bad",reason="load_crashed",variant="crashatload"'
        assert f"stretto_variant_quarantined{{{labels}}} 1.0" in text.replace(
            'application="bad",variant="crashatload",reason="load_crashed"', labels
        )
        assert 'stretto_variant_quarantines_total{application="bad",variant="crashatload"} 1.0' in text
        again = server.ask("POST", "/v2/repository/models/bad/load", name="management")
        assert again.status == 400 and "set aside" in again.content["error"]
        assert status("/v2/models/good/ready") == 200
        add(root, "worse", "RaiseAtLoad")  # an operator used to hear nothing but the end of what it raised
        raised = server.ask("POST", "/v2/repository/models/worse/load", name="management")
        assert raised.status == 400 and raised.content["error"].startswith("worse/raiseatload is set aside")
        assert "RuntimeError: weights: none; it is tried again in" in raised.content["error"]


def test_what_a_model_raises_stays_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client used to read the whole exception."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    root = tmp_path / "models"
    add(root, "raising", "raise_at_run")
    body = json.dumps(INFER).replace("[0, 0, 0, 0]", "[1, 1, 1, 1]").encode()
    for tells in (False, True):
        with Running(root, only=(), kind=KIND, tells_failures=tells) as server:
            reply = server.ask("POST", "/v2/models/raising/infer", body)
            assert reply.status == 500 and ("secret" in reply.content["error"]) is tells, reply.content


def test_an_application_whose_only_model_fails_says_that_it_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query got its 500, and the index said READY."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("STRETTO_TEST_MARKS", str(marks))
    root = tmp_path / "models"
    add(root, "app", "raise_while_broken")
    body = json.dumps(INFER).encode()
    with Running(root, only=(), kind=KIND) as server:

        def row() -> dict[str, str]:
            reply = server.ask("POST", "/v2/repository/index", name="management")
            (found,) = reply.content
            return dict(found)

        assert server.ask("POST", "/v2/models/app/infer", body).status == 200 and row()["state"] == "READY"
        (marks / "broken").touch()
        end = time.monotonic() + 60
        statuses = []
        while 503 not in statuses and time.monotonic() < end:
            statuses.append(server.ask("POST", "/v2/models/app/infer", body).status)
            time.sleep(0.02)
        assert set(statuses) == {500, 503}
        assert server.ask("GET", "/v2/models/app/ready").status == 503
        assert server.ask("GET", "/v2/health/ready").status == 503
        assert row()["state"] == "UNAVAILABLE" and "RuntimeError: it is broken" in row()["reason"]
        text = server.ask("GET", "/metrics", name="management").body.decode()
        assert 'reason="raised"' in text
        (marks / "broken").unlink()
        assert server.ask("POST", "/v2/repository/models/app/load", name="management").status == 200
        assert server.ask("POST", "/v2/models/app/infer", body).status == 200 and row()["state"] == "READY"
