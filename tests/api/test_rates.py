"""How much one client may ask: by requests and by profiled worker time, told in 429. What is remembered is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from stretto.api.errors import ApiError, Reason
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.rates import RateLimits, Rates, WorkerTime
from stretto.api.server import Listen
from stretto.client import Client, Overloaded
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.profile import LatencyProfile
from stretto.live.requests import Request
from tests.api.serving import INFER, Running, images, json_body
from tests.dispatch.small import deployed, variant

S = 1_000_000_000
MS = 1_000_000


@pytest.fixture
def deployment() -> Deployment:
    """A fast variant of 1 + b ms and a slow one of 10 + 10b, batches of up to 10."""
    profiles = {"fast": (1.0, 1.0), "slow": (10.0, 10.0)}
    made = (variant(name, profile=LatencyProfile.linear(*line, max_batch=10)) for name, line in profiles.items())
    return deployed(*made)


class Served:
    """As much of an engine as limits look at."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.generation = self
        self.numbers = {"app": 0}


def ended(outcome: Outcome, *variants: str, rows: int = 1, batch: int = 1) -> Request:
    request = Request("app", np.zeros((rows, 1)), 0, lambda request: None)
    request.outcome, request.variants, request.batch = outcome, list(variants), batch
    return request


def refusal(rates: Rates, now_ns: int, who: str, on: Deployment) -> ApiError:
    with pytest.raises(ApiError) as caught:
        rates.admit(now_ns, who, on, 0, 1)
    assert caught.value.reason is Reason.OVERLOADED
    return caught.value


def test_requests_a_second(deployment: Deployment) -> None:
    rates = Rates(RateLimits(requests_per_s=4), 100)
    for _ in range(4):
        rates.admit(0, "a", deployment, 0, 1)
    assert refusal(rates, 0, "a", deployment).retry_after_s == 1
    rates.admit(0, "b", deployment, 0, 1)  # another one is not held back
    assert refusal(rates, S // 4 - 1, "a", deployment)
    rates.admit(S // 4, "a", deployment, 0, 1)
    assert refusal(rates, S // 4, "a", deployment)
    for _ in range(4):
        rates.admit(60 * S, "a", deployment, 0, 1)  # a second's worth is saved up, not more
    refusal(rates, 60 * S, "a", deployment)
    assert rates.refused == {"requests": 4, "worker_time": 0}


def test_less_than_one_request_a_second(deployment: Deployment) -> None:
    rates = Rates(RateLimits(requests_per_s=0.1), 100)
    rates.admit(0, "a", deployment, 0, 1)
    assert refusal(rates, 2 * S, "a", deployment).retry_after_s == 8
    rates.admit(10 * S, "a", deployment, 0, 1)


def test_worker_time_is_what_counts(deployment: Deployment) -> None:
    """Two clients send as much; the one whose queries take ten times as long is answered a tenth as often."""
    rates, served = Rates(RateLimits(worker_ms_per_s=100), 100), Served(deployment)
    answered = {"fast": 0, "slow": 0}
    for step in range(10_000):  # ten seconds
        for name in answered:
            try:
                charge = rates.admit(step * MS, name, deployment, 0, 1)
            except ApiError:
                continue
            answered[name] += 1
            rates.settle(charge, ended(Outcome.ON_TIME, name), served)  # type: ignore[arg-type]
    assert 10 * 100 / 2 <= answered["fast"] <= 11 * 100 / 2 + 1
    assert 10 * 100 / 20 <= answered["slow"] <= 11 * 100 / 20 + 1
    assert rates.refused["worker_time"] > 10_000


def test_many_at_once_are_not_all_admitted(deployment: Deployment) -> None:
    """Before any of them has ended: each pays at least 1.1 ms, the fast variant in a full batch."""
    rates, served = Rates(RateLimits(worker_ms_per_s=110), 100), Served(deployment)
    charges = []
    for _ in range(1_000):
        try:
            charges.append(rates.admit(0, "a", deployment, 0, 1))
        except ApiError:
            break
    assert len(charges) == 101  # the last one overdraws
    for charge in charges:
        rates.settle(charge, ended(Outcome.DROPPED_OVERLOAD), served)  # type: ignore[arg-type]
    assert rates.admit(0, "a", deployment, 0, 1000), "what the server gave up costs nothing"
    assert refusal(rates, 0, "a", deployment).retry_after_s == 9  # 1,100 ms of 110 a second, less what was left


def test_what_is_withdrawn_or_failed_is_paid(deployment: Deployment) -> None:
    rates, served = Rates(RateLimits(worker_ms_per_s=1), 100), Served(deployment)
    for who, outcome, is_paid in (
        ("a", Outcome.DROPPED_CANCELLED, True),
        ("b", Outcome.FAILED, True),
        ("c", Outcome.DROPPED_EXPIRED, False),
    ):
        charge = rates.admit(0, who, deployment, 0, 1)
        rates.settle(charge, ended(outcome), served)  # type: ignore[arg-type]
        if is_paid:
            refusal(rates, 0, who, deployment)
        else:
            rates.admit(0, who, deployment, 0, 1)
    rates.admit(0, "d", deployment, 0, 1).give_back()
    rates.admit(0, "d", deployment, 0, 1)


def test_a_query_pays_its_share_of_the_batch(deployment: Deployment) -> None:
    costs = WorkerTime()
    assert costs.least_ns(deployment, 0) == pytest.approx(1.1 * MS)
    assert costs.mean_ns(deployment, 0, ("slow",), 1) == pytest.approx(20 * MS)
    assert costs.mean_ns(deployment, 0, ("slow",), 5) == pytest.approx(12 * MS)
    assert costs.mean_ns(deployment, 0, ("slow",), 99) == pytest.approx(11 * MS)
    assert costs.mean_ns(deployment, 0, ("fast", "slow"), 1) == pytest.approx(11 * MS)
    assert costs.mean_ns(deployment, 0, ("evidence",), 0) == 0


def test_it_remembers_so_many_and_no_more(deployment: Deployment) -> None:
    rates = Rates(RateLimits(requests_per_s=1), 50)
    for number in range(50):
        rates.admit(0, str(number), deployment, 0, 1)
    rates.admit(0, "new", deployment, 0, 1)  # shares an account with all that come now
    for number in range(200):
        refusal(rates, 0, f"newer {number}", deployment)
    assert len(rates) <= 50
    for number in range(50):
        rates.admit(2 * S, f"later {number}", deployment, 0, 1)  # those of before have all they can have: forgotten
    assert len(rates) <= 50
    refusal(rates, 2 * S, "later 0", deployment)


def test_limits_that_are_none() -> None:
    assert RateLimits().are_off and not RateLimits(1).are_off and not RateLimits(0, 1).are_off
    with pytest.raises(StrettoError, match="not by 'moon'"):
        RateLimits(by="moon")
    with pytest.raises(StrettoError, match="only where they have tokens"):
        Listen(rates=RateLimits(1, by="token"))


# -- over the wire -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(repository: Path) -> Iterator[Running]:
    with Running(repository, rates=RateLimits(requests_per_s=0.001), grpc=True) as running:
        yield running


def asked(client_id: str) -> bytes:
    tensor = protocol.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 1, 28, 28])
    message = protocol.ModelInferRequest(
        model_name="fashion",
        inputs=[tensor],
        raw_input_contents=[images().tobytes()],
        parameters={"client_id": protocol.InferParameter(string_param=client_id)},
    )
    return message.SerializeToString()


def test_it_is_told_in_429(limited: Running) -> None:
    before = limited.counts()[0]
    body = json_body(images(), client_id="greedy")
    assert limited.ask("POST", INFER, body).status == 200
    for _ in range(2):
        reply = limited.ask("POST", INFER, body)
        assert reply.status == 429 and reply.content["reason"] == "overloaded"
        assert 900 <= int(reply.headers["retry-after"]) <= 1000
    assert limited.ask("POST", INFER, json_body(images(), client_id="modest")).status == 200
    host, port = limited.address("grpc")
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            infer(asked("greedy"), timeout=30)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(error.trailing_metadata())["retry-after"]) >= 900
        assert infer(asked("another"), timeout=30)
    with Client(limited.url()) as client, pytest.raises(Overloaded) as told:
        client.infer("fashion", images(), deadline_ms=20_000, client_id="another")
    assert told.value.retry_after_s is not None and told.value.retry_after_s >= 900
    assert limited.counts()[0] == before + 3, "what is refused becomes no query"
    text = limited.ask("GET", "/metrics", name="management").body.decode()
    assert 'stretto_requests_limited_total{limit="requests"} 4.0' in text
    assert 'stretto_requests_refused_total{reason="overloaded"} 4.0' in text


def test_by_token(repository: Path) -> None:
    limits = RateLimits(worker_ms_per_s=1e-6, by="token")
    tokens = ("0123456789abcdef", "fedcba9876543210")
    with Running(repository, rates=limits, tokens=tokens, grpc=True) as server:
        for token in tokens:
            given = f"Bearer {token}"
            # Another client_id is no other token.
            statuses = [
                server.ask("POST", INFER, json_body(images(), client_id=name), Authorization=given).status
                for name in ("a", "b", "c")
            ]
            assert statuses == [200, 429, 429]
        host, port = server.address("grpc")
        with grpc.insecure_channel(f"{host}:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            infer(asked("d"), metadata=(("authorization", f"bearer {tokens[0]}"),), timeout=30)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        text = server.ask("GET", "/metrics", name="management").body.decode()
        assert 'stretto_requests_limited_total{limit="worker_time"} 5.0' in text
