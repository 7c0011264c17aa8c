"""`stretto plan` and `stretto capacity` as a person runs them: pictures, numbers, files, and errors as sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.subject import POLICY_PLANNERS, read_choice
from stretto.planners.parts.store import load_libraries, matching
from stretto.planners.parts.task import task_of
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import make_policy
from stretto.planners.registry import NAMES
from tests.planners.parts.tasks import small_deployment

BATCHES = 8
QUICK = ("--planner", "ramsis", "--slack-steps", 20)


@pytest.fixture
def latencies(tmp_path: Path) -> Path:
    """The small task of the planner's tests as a table of measurements."""
    file = tmp_path / "app.csv"
    lines = ["model,accuracy,batch,p95_ms"]
    for name, accuracy, alpha, beta in (("fast", 0.6, 3, 5), ("middle", 0.7, 5, 10), ("slow", 0.9, 9, 16)):
        lines += [f"{name},{accuracy},{batch},{alpha * batch + beta}" for batch in range(1, BATCHES + 1)]
    file.write_text("\n".join(lines) + "\n")
    return file


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def printed(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    return result.stderr.removeprefix("error: ").strip()


def test_plan_shows_the_policy_of_the_planner(latencies: Path) -> None:
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 3, "--load", 90)
    data = printed(*what, *QUICK)
    deployment = small_deployment(3)
    policy = make_policy(task_of(deployment, 0).only([0, 1, 2]), Options(slack_steps=20), 90.0)
    promised = policy.expectation
    assert data["expected"] == {
        "accuracy": promised.accuracy,
        "violation": promised.late,
        "median_accuracy": promised.median,
        "p99_accuracy": promised.p99,
    }
    np.testing.assert_array_equal(data["table"]["variant"], policy.variant)
    np.testing.assert_array_equal(data["table"]["batch"], policy.batch)
    assert (data["planner"], data["application"], data["slo_ms"]) == ("ramsis", "app", 60)
    assert [variant["name"] for variant in data["variants"]] == ["fast", "middle", "slow"]
    result = run(*what, *QUICK)
    assert result.exit_code == 0, result.output
    for word in ("app: ramsis, 3 workers, 90 queries/s, SLO 60 ms", "slack of the head", "middle", "l(1) p95 ms"):
        assert word in result.stdout
    assert f"at least {policy.expectation.accuracy:.4f}" in result.stdout
    assert f"at least {promised.median:.4f}, {promised.p99:.4f}" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_what_the_shortest_queue_promises_is_called_an_estimate(latencies: Path) -> None:
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 3, "--load", 90, *QUICK)
    assert "at least" in run(*what).stdout and "at most" in run(*what).stdout
    by_length = run(*what, "--balancing", "shortest").stdout
    assert "expected accuracy" in by_length and "at least" not in by_length and "at most" not in by_length


def test_variable_batches_are_shown_and_plotted(latencies: Path, tmp_path: Path) -> None:
    plot = tmp_path / "policy.png"
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 2, "--load", 150, "--max-queue", 12)
    result = run(*what, *QUICK, "--batching", "variable", "--plot", plot)
    assert result.exit_code == 0, result.output
    assert "a number after a letter is the batch" in result.stdout.lower() and f"plot: {plot}" in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_load_beyond_the_workers_is_warned_of(latencies: Path) -> None:
    result = run("plan", latencies, "--slo-ms", 60, "--workers", 1, "--load", 5000, *QUICK)
    assert result.exit_code == 0 and "1 workers answer at most" in result.stderr


def test_options_reach_the_planner(latencies: Path) -> None:
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 2, "--load", 100, *QUICK)
    usual = printed(*what)
    for option, word in (
        ("--balancing", "shortest"),
        ("--late", "drop"),
        ("--reward", "decision"),
        ("--arrivals", "gamma:0.3"),
        ("--max-queue", "6"),
    ):
        assert printed(*what, option, word)["expected"] != usual["expected"], option
    assert printed(*what, "--batching", "maximal", "--arrivals", "poisson")["table"] == usual["table"]


def test_without_a_name_the_planner_is_the_first_that_knows_the_options() -> None:
    offered = [name for name in POLICY_PLANNERS if name in NAMES]
    assert read_choice(None, None, {}, {}).name == offered[0]
    assert read_choice(None, None, {}, {"batching": "variable"}).name == "ramsis"
    assert read_choice(None, "gamma:0.5", {}, {}).gamma_shape == 0.5


def test_the_zoo_can_be_planned_for() -> None:
    data = printed("plan", "zoo:fashion", "--workers", 2, "--load", 2000, *QUICK)
    assert data["application"] == "fashion" and len(data["variants"]) > 3
    tighter = printed("plan", "zoo:fashion", "--workers", 2, "--load", 2000, "--slo-ms", 5, *QUICK)
    assert tighter["slo_ms"] == 5 and tighter["expected"]["accuracy"] < data["expected"]["accuracy"]


def test_without_a_planner_the_best_candidate_is_shown(latencies: Path, tmp_path: Path) -> None:
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 2, "--load", 100)
    data = printed(*what)
    judged = data["judged"]
    assert data["planner"] == "judged" and judged["load"] == 100 and judged["tried"] > 20
    assert judged["promise"]["correct"] == pytest.approx(
        data["expected"]["accuracy"] * (1 - data["expected"]["violation"])
    )
    assert judged["promise"]["correct"] <= judged["bound"] + 0.005
    assert judged["runner_up"] != judged["candidate"] and judged["ahead"] > -0.001  # stress decides among equals
    plot = tmp_path / "plan.png"
    result = run(*what, "--plot", plot)
    assert result.exit_code == 0, result.output
    for words in (f": {judged['candidate']}", "promised right and on time", "no plan can beat", "ahead by"):
        assert words in result.stdout
    assert plot.exists() == (data["table"] is not None)


def test_policies_for_a_range_of_loads_go_into_a_file(latencies: Path, tmp_path: Path) -> None:
    out = tmp_path / "policies.npz"
    what = ("plan", latencies, "--slo-ms", 60, "--workers", 2, "--loads", "20:80", "--out", out, "--processes", 2)
    data = printed(*what, *QUICK, "--max-queue", 8)
    loads = [policy["load"] for policy in data["policies"]]
    assert loads == sorted(loads) and (loads[0], loads[-1]) == (20, 80)
    (stored,) = load_libraries(out)
    assert [policy.load for policy in stored.policies] == loads
    task = task_of(small_deployment(2), 0).only([0, 1, 2])
    alike = matching([stored], task, Options(slack_steps=20, max_queue=8))
    assert np.array_equal(
        alike.policies[0].variant, make_policy(task, Options(slack_steps=20, max_queue=8), 20.0).variant
    )


def test_capacity_finds_the_fewest_and_checks_them(latencies: Path, tmp_path: Path) -> None:
    plot = tmp_path / "capacity.png"
    what = ("capacity", latencies, "--slo-ms", 60, "--load", 150, "--min-accuracy", 0.8, *QUICK)
    data = printed(*what, "--max-violation", 0.01, "--seconds", 20, "--plot", plot)
    found = data["workers"]
    by_workers = {one["workers"]: one for one in data["tried"]}
    assert by_workers[found]["accuracy"] >= 0.8 and by_workers[found]["violation"] <= 0.01
    below = by_workers[found - 1]
    below = below if below["simulated"] is None else below["simulated"]
    assert below["accuracy"] < 0.8 or below["violation"] > 0.01
    assert data["simulated"]["accuracy"] >= 0.8 and data["simulated"]["violation"] <= 0.01
    assert plot.read_bytes().startswith(b"\x89PNG")
    alone = printed("plan", latencies, "--slo-ms", 60, "--workers", found, "--load", 150, *QUICK)
    assert alone["expected"] == data["expected"]
    result = run(*what, "--seconds", 20)
    assert result.exit_code == 0, result.output
    for word in (f"{found} workers for accuracy ≥ 0.8", "expected   accuracy at least", "simulated  accuracy"):
        assert word in result.stdout


def test_capacity_is_by_judged_promises_unless_a_planner_is_named(latencies: Path) -> None:
    what = ("capacity", latencies, "--slo-ms", 60, "--load", 60, "--min-accuracy", 0.8, "--seconds", 10)
    data = printed(*what)
    assert data["planner"] == "judged" and data["judged"]["candidate"]
    by_workers = {one["workers"]: one for one in data["tried"]}
    assert by_workers[data["workers"]]["accuracy"] >= 0.8 and by_workers[data["workers"]]["violation"] <= 0.01
    assert data["simulated"]["accuracy"] >= 0.8 and data["simulated"]["violation"] <= 0.01


def test_a_number_that_the_simulation_refutes_is_not_the_answer(latencies: Path) -> None:
    """It was named all the same, and below it stood: "add a worker"."""
    what = ("capacity", latencies, "--slo-ms", 60, "--load", 60, "--min-accuracy", 0.8105, "--seconds", 10)
    data = printed(*what)
    fewer, *_ = data["tried"]
    assert (fewer["workers"], data["workers"]) == (1, 2)
    assert fewer["accuracy"] >= 0.8105 > fewer["simulated"]["accuracy"]
    assert data["simulated"]["accuracy"] >= 0.8105 and data["simulated"]["violation"] <= 0.01
    result = run(*what)
    assert "2 workers for accuracy ≥ 0.8105" in result.stdout and "simulation falls short" in result.stdout
    assert f"  not 1: simulated accuracy {fewer['simulated']['accuracy']:.6f}, not on time" in result.stdout
    assert "add a worker" not in result.output
    assert "2 workers for" not in run(*what[:-1], 10, "--max-workers", 1).output
    assert "a simulation of them falls short" in refused(*what, "--max-workers", 1)


def test_the_cheapest_fleet_of_two_kinds() -> None:
    """The zoo has profiles of a processor and of a GPU."""
    what = ("capacity", "zoo:mnist", "--load", 2000, "--min-accuracy", 0.9, "--seconds", 1, "--cost", "gpu=2.5,cpu=0.1")
    data = printed(*what)
    fleet = {kind.partition("-")[0]: count for kind, count in data["fleet"].items()}
    assert fleet == {"gpu": 0, "cpu": 1} and data["cost_per_hour"] == 0.1 >= data["cost_per_hour_at_least"]
    assert data["expected"]["accuracy"] >= 0.9 and data["expected"]["violation"] <= 0.01
    assert [trial["is_enough"] for trial in data["tried"] if trial["fleet"] == data["fleet"]] == [True]
    result = run(*what[:-1], "gpu=0.01,cpu=0.1")
    assert result.exit_code == 0, result.output
    assert "1 of gpu-" in result.stdout and "0.01 an hour, for accuracy ≥ 0.9" in result.stdout
    assert "cheapest" in result.stdout and "by the fluid bound" in result.stdout


def test_mistakes_in_costs_are_sentences(latencies: Path) -> None:
    ask = ("capacity", "zoo:mnist", "--load", 2000, "--min-accuracy", 0.9)
    for cost, words in (
        ("gpu", "'gpu' has no price; write KIND=PRICE"),
        ("gpu=2.5,cpu", "'cpu' has no price"),
        ("gpu=", "has no price"),
        ("=2", "has no price"),
        ("gpu=nan", "has no price"),
        ("gpu=-1", "it must be above 0"),
        ("gpu=1,gpu=2", "names gpu twice"),
        ("gpu=1,gpu-nvidia-h200=2", "names gpu-nvidia-h200 twice"),
        ("tpu=2", "zoo:mnist has no profile on workers of kind 'tpu'; it has cpu-"),
    ):
        assert words in refused(*ask, "--cost", cost), cost
    assert "leave out --planner" in refused(*ask, "--cost", "cpu=1", "--planner", "ramsis")
    assert "--kind does not go with --cost" in refused(*ask, "--cost", "cpu=1", "--kind", "x")
    one = ("capacity", latencies, "--slo-ms", 60, "--load", 60, "--min-accuracy", 0.8)
    assert "latencies of one kind" in refused(*one, "--cost", "a=1,b=2")
    assert "not even the fluid bound" in refused(*ask[:5], 0.9999, "--cost", "cpu=1")


def test_what_is_impossible_is_said(latencies: Path) -> None:
    ask = ("capacity", latencies, "--load", 150, *QUICK)
    assert "slow is the most accurate variant" in refused(*ask, "--slo-ms", 60, "--min-accuracy", 0.95)
    assert "slow would do with an SLO above 25 ms" in refused(*ask, "--slo-ms", 20, "--min-accuracy", 0.8)
    assert "raise the SLO or add a faster variant" in refused(*ask, "--slo-ms", 5, "--min-accuracy", 0.5)
    few = refused(*ask, "--slo-ms", 60, "--min-accuracy", 0.85, "--max-workers", 2)
    assert few.startswith("2 workers are not enough") and "allow more workers" in few


def test_mistakes_are_sentences(latencies: Path, tmp_path: Path) -> None:
    plan = ("plan", latencies, "--workers", 2, "--slo-ms", 60)
    assert "give --load RATE to see one policy" in refused(*plan)
    assert "give --load RATE" in refused(*plan, "--load", 5, "--loads", "1:2", "--out", tmp_path / "p.npz")
    assert "belong together" in refused(*plan, "--loads", "1:2")
    assert "write it as LOW:HIGH" in refused(*plan, "--loads", "12", "--out", tmp_path / "p.npz")
    assert "loads rise" in refused(*plan, "--loads", "5:2", "--out", tmp_path / "p.npz")
    assert "must end in .npz" in refused(*plan, "--loads", "1:2", "--out", tmp_path / "p.txt")
    assert "--load is -1" in refused(*plan, "--load", -1)
    assert "--load is nan" in refused(*plan, "--load", "nan")
    assert "--workers is 0" in refused("plan", latencies, "--workers", 0, "--slo-ms", 60, "--load", 5)
    assert "--slo-ms is 0" in refused("plan", latencies, "--workers", 2, "--slo-ms", 0, "--load", 5)
    assert "states no SLO; give one" in refused("plan", latencies, "--workers", 2, "--load", 5)
    assert "it is maximal or variable" in refused(*plan, "--load", 5, "--batching", "big")
    assert "gamma:0.5 for bursts" in refused(*plan, "--load", 5, "--arrivals", "weibull:2")
    assert "between 0.001 and 1" in refused(*plan, "--load", 5, "--arrivals", "gamma:2")
    assert "makes no policies with a promise" in refused(*plan, "--load", 5, "--planner", "clipper")
    assert "leave them out, or the planner" in refused(*plan, "--load", 5, "--planner", "judged", "--slack-steps", 9)
    assert "makes no policies" in refused(*plan, "--planner", "judged", "--loads", "1:2", "--out", tmp_path / "p.npz")
    assert "slack is cut into" in refused(*plan, "--load", 5, "--planner", "ramsis", "--slack-steps", 99_999)
    assert "name one of them, as zoo:" in refused("plan", "zoo", "--workers", 2, "--load", 5)
    assert "there is no such folder" in refused("plan", tmp_path / "none", "--workers", 2, "--load", 5)
    capacity = ("capacity", latencies, "--slo-ms", 60, "--load", 5)
    assert "must be a fraction from 0 to 1" in refused(*capacity, "--min-accuracy", 80)
    assert "violations asked for is -1" in refused(*capacity, "--min-accuracy", 0.8, "--max-violation", -1)
    assert "--seconds is 0" in refused(*capacity, "--min-accuracy", 0.8, "--seconds", 0)
