"""Autoscaling as an operator sees it: the fleet at the management listener, and the metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.core.advice import JudgedFleet, Scaling
from stretto.live.scaling_options import ScalingOptions, read_bounds
from stretto.planning.autoscale_options import AutoscaleOptions
from tests.api.serving import Running
from tests.api.test_metrics import read, total


def fleet(server: Running) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(server.ask("GET", "/v2/fleet", name="management").body)
    return content


@pytest.mark.parametrize("actuator", ["advice", "local"])
def test_advice_is_told_and_taken(repository: Path, actuator: str) -> None:
    given = ScalingOptions((read_bounds("2:4@0.25"),), actuator, options=AutoscaleOptions(period_s=0.05))
    with Running(repository, autoscale=given) as server:

        def state() -> Scaling:
            assert server.service.scaler is not None
            return server.service.scaler.state

        server.wait_until(lambda: bool(state().advice.wanted), "the first period is over")
        told = fleet(server)["autoscale"]
        (kind,) = told["wanted"]
        assert told["wanted"] == {kind: 2} and told["bounds"] == {kind: {"min": 2, "max": 4}}
        assert told["actuator"] == actuator and told["cost_per_hour"] == 0.5 and told["problem"] == ""
        assert told["failures"] == 0 and told["bad_rate"] == 0 and 0 <= told["age_s"] < 60
        expected = 2 if actuator == "local" else 1
        server.wait_until(lambda: server.service.engine.crew.ready_count == expected, "the advice is taken, or not")
        assert fleet(server)["present"] == {kind: expected}
        samples = read(server)
        assert total(samples, "stretto_workers_wanted", kind=kind) == 2
        assert total(samples, "stretto_workers_ready") == expected
        assert total(samples, "stretto_workers_cost_per_hour") == 0.5
        for name in ("bad_rate", "idle_share", "changes_total", "failures_total"):
            assert any(found == f"stretto_autoscale_{name}" for found, _ in samples), name
        server.wait_until(lambda: state().advice.starting == {kind: 2 - expected}, "the next period is over")
        assert total(read(server), "stretto_workers_starting", kind=kind) == 2 - expected


def test_what_the_judge_would_have_is_told_beside_the_advice(repository: Path) -> None:
    given = ScalingOptions((read_bounds("1:4@0.25"),), "advice", options=AutoscaleOptions(period_s=0.05))
    with Running(repository, autoscale=given) as server:
        scaler = server.service.scaler
        assert scaler is not None and "judged" not in fleet(server)["autoscale"]
        (kind,) = scaler.state.bounds
        assert total(read(server), "stretto_workers_judged", kind=kind) == 0
        judged = JudgedFleet({kind: 3}, 0.75, 120.0, 0.004, 0.91, "shared_queue", True, server.service.engine.clock())

        def say() -> None:
            scaler.state = replace(scaler.state, judged=judged)

        server.call(say)
        told = fleet(server)["autoscale"]
        age_s = told["judged"].pop("age_s")
        assert 0 <= age_s < 60 and told["judged"] == {
            "wanted": {kind: 3},
            "is_enough": True,
            "cost_per_hour": 0.75,
            "queries_per_s": 120.0,
            "not_on_time": 0.004,
            "accuracy": 0.91,
            "candidate": "shared_queue",
        }
        samples = read(server)
        assert total(samples, "stretto_workers_judged", kind=kind) == 3
        assert total(samples, "stretto_workers_judged_cost_per_hour") == 0.75


def test_nothing_is_told_where_the_fleet_is_not_scaled(server: Running) -> None:
    assert "autoscale" not in fleet(server)
    assert not any(name.startswith("stretto_autoscale") for name, _ in read(server))
