"""What the benchmark serves is what the policy was trained for."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.scenario.read import read_scenario
from stretto.core.deployment import Deployment
from stretto.core.profile import Quantile
from stretto.core.view import View
from stretto.live.fleet import deployed_workers, read_worker
from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.planner import EdgeRL
from stretto.repository.read import read_repository

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("edge_rl_live")


def crew_of(deployment: Deployment) -> list[tuple[str, int, float]]:
    names = [variant.name for variant in deployment.variants]
    return [(names[each.variant], each.service_ns, each.accuracy) for each in instances_of(deployment)]


def test_the_served_repository_is_the_scenario_that_the_policy_learned(live: Any, tmp_path: Path) -> None:
    live.write_repository(tmp_path)
    repository = read_repository(str(tmp_path))
    given = live.arguments_for(tmp_path, live.TRAINED)
    fleet = [read_worker(text) for option, text in pairwise(given) if option == "--worker"]
    served, _ = repository.deployment(deployed_workers(fleet, repository), Quantile.MEAN)
    learned = read_scenario(ROOT / "examples" / "edge" / "live.toml").deployment
    assert crew_of(served) == crew_of(learned) and len(crew_of(served)) == 4
    assert served.applications[0].slo_ns == learned.applications[0].slo_ns
    plan = EdgeRL(str(live.TRAINED))(View(served))
    assert sum(plan.routes[0].weights[2:]) > 0.5 > sum(plan.routes[0].weights[:2])  # nothing waits yet
