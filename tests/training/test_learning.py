"""Learning itself: the environment's contract, our PPO beside stable-baselines3, checkpoints, and the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytestmark = pytest.mark.extras
pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from stretto.cli.train_ground import read_ground  # noqa: E402
from stretto.core.profile import Quantile  # noqa: E402
from stretto.core.view import View  # noqa: E402
from stretto.planners.edge_rl.file import load_policies  # noqa: E402
from stretto.planners.edge_rl.planner import EdgeRL  # noqa: E402
from stretto.planners.edge_rl.policy import Description, log_density  # noqa: E402
from stretto.planning.served import served_session  # noqa: E402
from stretto.sim.switching import Switching  # noqa: E402
from stretto.training.evaluate import evaluate  # noqa: E402
from stretto.training.settings import instance_deployment  # noqa: E402
from stretto.training.world import System, World  # noqa: E402
from tests.cli.test_train_ground import recorded  # noqa: E402
from tests.planners.edge_rl.test_policy import made  # noqa: E402

SYSTEM = System(
    instance_deployment((2, 2), (9.9, 33.3), (0.7769, 0.8278), 300.0), Switching((10.0, 180.0), (50.0, 50.0 / 18))
)
TOML = Path(__file__).resolve().parents[2] / "examples" / "edge" / "edge.toml"


def recipe(**more):  # type: ignore[no-untyped-def]
    from stretto.training.ppo import Recipe

    quick = {"sigma": (0.25, 0.08), "clip": 0.3, "discount": 0.9, "trace": 0.9}
    return Recipe(**({"iterations": 30, "slots": 16, "minibatch": 2048} | quick | more))


def test_the_environment_keeps_gymnasium_s_contract() -> None:
    from gymnasium.vector import AutoresetMode, VectorEnv

    from stretto.training.environment import EdgeEnvironment

    policy = made(SYSTEM.deployment)
    environment = EdgeEnvironment(World([SYSTEM], policy.description, 2048, 1), policy, episode_slots=3)
    assert isinstance(environment, VectorEnv) and environment.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    first, infos = environment.reset(seed=5)
    assert infos == {} and environment.observation_space.contains(first)
    again, _ = environment.reset(seed=5)
    assert (first == again).all()
    for slot in range(1, 8):
        seen, gained, ended, cut, infos = environment.step(environment.action_space.sample())
        assert seen.shape == (2048, 132) and gained.shape == (2048,) and not ended.any()
        assert environment.observation_space.contains(seen)
        assert bool(cut.all()) == (slot % 3 == 0) and ("final_obs" in infos) == (slot % 3 == 0)


def test_the_chance_that_ppo_uses_differs_from_equation_nine_by_a_constant() -> None:
    import torch

    from stretto.training.ppo import Learner

    learner = Learner(SYSTEM.description(Description("joint", 1.0)), recipe(), seed=3)
    features = torch.rand(6, 132)
    logs = torch.log_softmax(torch.randn(6, 4), dim=-1)
    ours = learner.log_chance(features, logs, None).detach().numpy()
    means = learner.actor(features).detach().numpy().astype(float)
    whole = log_density(np.exp(logs.numpy().astype(float)), means, learner.value_at(learner.recipe.sigma))
    constant = whole - ours + logs.numpy().sum(axis=1)
    assert constant == pytest.approx(np.full(6, constant[0]), abs=1e-3)


def test_it_first_follows_a_teacher(tmp_path: Path) -> None:
    """One that gives the last instance most queries, which no reward would suggest."""
    from stretto.training.run import Options, Training

    taught = np.array([0.1, 0.1, 0.1, 0.7])

    def teacher(seen, setting):  # type: ignore[no-untyped-def]
        return np.tile(taught, (len(seen.length), 1)), None

    options = Options(recipe(iterations=6, taught=6, minibatch=256), 64, validate_every=6)
    policy = Training([SYSTEM], Description("joint", 1.0), options, tmp_path, teacher).run()
    world = World([SYSTEM], policy.description, 32, 1)
    shares, _ = policy.decide(world.restart(5), world.setting)
    assert shares.mean(axis=0) == pytest.approx(taught, abs=0.05)


def test_it_learns(tmp_path: Path) -> None:
    """From equal weights, which flood the heavy instances in every burst, to few violations."""
    from stretto.training.run import Options, Training

    training = Training(
        [SYSTEM], Description("joint", 1.0, sees_phase=True), Options(recipe(), 256, validate_every=10), tmp_path
    )
    told = []
    policy = training.run(told.append)
    assert [each.iteration for each in told] == list(range(1, 31))
    world = World([SYSTEM], policy.description, 128, 1)
    untrained, _ = evaluate(world, made(SYSTEM.deployment, sees_phase=True).decide, 20_000, seed=77)
    learned, _ = evaluate(world, policy.decide, 20_000, seed=77)
    assert learned.overall.goodput > untrained.overall.goodput + 0.05 and learned.overall.violations < 0.06
    assert [row["slots"] for row in json.loads((tmp_path / "curve.json").read_text())] == [40_960, 81_920, 122_880]


@pytest.mark.parametrize(("most", "kept"), [(1.0, "goodput"), (1e-9, "reward")])
def test_the_policy_that_is_kept(tmp_path: Path, most: float, kept: str) -> None:
    """The one with most goodput within the violations asked; where none is within, the one with most reward."""
    from stretto.training.run import Options, Training

    options = Options(recipe(iterations=8), 64, validate_every=1, validation_slots=3200, most_violations=most)
    training = Training([SYSTEM], Description("joint", 1.0), options, tmp_path)
    policy = training.run()
    by_goodput = max(training.curve, key=lambda row: row["overall_goodput"])
    by_reward = max(training.curve, key=lambda row: row["overall_goodput"] - row["overall_violations"])
    expected = by_goodput if kept == "goodput" else by_reward
    assert training.kept() == expected and training.is_within == (kept == "goodput")
    assert policy.description.trained["slots"] == expected["slots"]


def test_stable_baselines_learns_the_same() -> None:
    pytest.importorskip("stable_baselines3")
    from stretto.training.environment import EdgeEnvironment
    from stretto.training.stable_baselines import train_by_stable_baselines

    description = SYSTEM.description(Description("joint", 1.0, sees_phase=True))
    world = World([SYSTEM], description, 256, 1)
    environment = EdgeEnvironment(world, made(SYSTEM.deployment, sees_phase=True), less_chance=True)
    policy = train_by_stable_baselines(environment, recipe(), seed=2)
    learned, _ = evaluate(World([SYSTEM], description, 128, 1), policy.decide, 20_000, seed=77)
    assert learned.overall.goodput > 0.75 and learned.overall.violations < 0.09


def test_a_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    from stretto.training.run import Options, Training

    def training(iterations: int) -> Training:
        options = Options(recipe(iterations=iterations), 64, validate_every=2, validation_slots=640)
        return Training([SYSTEM], Description("joint", 1.0), options, tmp_path)

    first = training(4)
    first.run()
    second = training(6)
    second.resume()
    assert second.learner.iteration == 4 and second.curve == first.curve
    for before, after in zip(first.learner.actor.parameters(), second.learner.actor.parameters(), strict=True):
        assert (before == after).all()
    second.run()
    assert second.learner.iteration == 6 and len(second.curve) == 3
    third = training(6)
    third.resume()
    assert third.run().description == second.run().description and third.kept() == second.kept()
    from stretto.core.errors import StrettoError

    other = Training([SYSTEM], Description("joint", 0.5), Options(recipe(), 64), tmp_path)
    with pytest.raises(StrettoError, match="another training"):
        other.resume()
    taught = Training([SYSTEM], Description("joint", 1.0), Options(recipe(taught=3), 64), tmp_path)
    with pytest.raises(StrettoError, match="give the rule that was taught"):
        taught.resume()
    shutil.copy(tmp_path / "policy.safetensors", tmp_path / "checkpoint.safetensors")
    with pytest.raises(StrettoError, match="another training"):
        training(8).resume()


def test_the_command(tmp_path: Path) -> None:
    from stretto.cli.main import app

    out = tmp_path / "trained"
    asked = ["train", str(TOML), "--out", str(out), "--iterations", "2", "--systems", "32", "--failures"]
    done = CliRunner().invoke(app, [*asked, "--plot", str(tmp_path / "curve.png")])
    assert done.exit_code == 0, done.output
    policies = load_policies(out / "policy.safetensors")
    assert [len(policy.description.instances) for policy in policies] == [4, 3, 3]
    assert (tmp_path / "curve.png").stat().st_size > 1000
    text = (
        TOML.read_text()
        .replace("partial.safetensors", str(out / "policy.safetensors"))
        .replace("seconds = 3000", "seconds = 20")
    )
    (tmp_path / "own.toml").write_text(text)
    run = CliRunner().invoke(app, ["simulate", str(tmp_path / "own.toml")])
    assert run.exit_code == 0, run.output


LOAD = '[load]\nkind = "gamma"\nshape = 0.5\nrate = 400\n'


def test_a_policy_is_served_by_the_planner_and_with_the_slot_and_buffer_that_it_was_trained_with(
    tmp_path: Path,
) -> None:
    """From a repository and a load without phases. A scenario, which decides by p95, serves it all the same."""
    from stretto.cli.main import app

    (tmp_path / "load.toml").write_text(LOAD)
    asked = ["train", "zoo:fashion", "--workers", "2", "--load", str(tmp_path / "load.toml"), "--out", str(tmp_path)]
    asked += ["--slot-ms", "250", "--buffer", "6", "--iterations", "1", "--systems", "16"]
    done = CliRunner().invoke(app, [*asked, "--plot", str(tmp_path / "curve.png")])
    assert done.exit_code == 0, done.output
    assert "warning: every worker runs" in done.output and "iteration 1/1" in done.output
    assert "fashion within 100 ms: resnet_" in done.output and "kept, after 0.00 M slots: " in done.output
    session = served_session("edge_rl", {"policy": str(tmp_path / "policy.safetensors")})
    assert session.rhythm.period_s == 0.25
    served = read_ground("zoo:fashion", tmp_path / "load.toml", 2, ()).deployment
    for quantile in (Quantile.MEAN, Quantile.P95):
        planner = EdgeRL(str(tmp_path / "policy.safetensors"))
        plan = planner(View(replace(served, quantile=quantile)))
        assert [lane.capacity for lane in plan.lanes] == [6, 6]


def test_a_policy_that_was_trained_from_a_recording_is_served_where_it_was_recorded(tmp_path: Path) -> None:
    """The recording alone says what is served, by how many, under what load and how fast."""
    from stretto.cli.main import app

    events = recorded(tmp_path)
    asked = ["train", str(events), "--out", str(tmp_path / "trained"), "--slot-ms", "50", "--systems", "16"]
    done = CliRunner().invoke(app, [*asked, "--iterations", "1"])
    assert done.exit_code == 0, done.output
    session = served_session("edge_rl", {"policy": str(tmp_path / "trained" / "policy.safetensors")})
    assert session.rhythm.period_s == 0.05
    plan = session.planner(View(read_ground(str(events), None, 0, ()).deployment))
    assert plan.planner == "edge_rl" and len(plan.lanes) == 2 and min(plan.routes[0].weights) > 0


def test_help_lists_options_under_headings() -> None:
    from stretto.cli.main import app

    text = CliRunner().invoke(app, ["train", "--help"]).output
    at = 0
    for part in ("What is learned on", "--load", "What the policy", "--buffer", "The run"):
        at = text.index(part, at)  # the text above the headings may name an option too
    assert text.count("--out FOLDER") == 1 and "-h, --help" in text


def test_options_of_the_command_reach_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options they are the paper's (section 5.1.4)."""
    from stretto.cli.main import app
    from stretto.training import run

    recipes = []

    class Stopped(Exception):
        pass

    def stop(systems, description, options, folder, rule=None):  # type: ignore[no-untyped-def]
        recipes.append((options.recipe, description))
        raise Stopped

    monkeypatch.setattr(run, "Training", stop)
    asked = ["train", str(TOML), "--out", str(tmp_path)]
    more = ["--discount", "0.9", "--gae-lambda", "0.8", "--clip", "0.3", "--sigma", "0.25,0.08", "--alpha", "2"]
    more += ["--beta", "3", "--buffer", "4", "--slot-ms", "100"]
    taught = ["--teach-lull", "1,1,1,1", "--teach-burst", "1,1,1,1"]
    for extra in ([], more, taught, [*taught, "--sigma", "0.3"]):
        assert isinstance(CliRunner().invoke(app, [*asked, *extra]).exception, Stopped)
    (first, seen), (other, described), *teaching = recipes
    assert (first.discount, first.trace, first.clip, first.sigma) == (0.99, 0.95, 0.2, (0.698, 0.698))
    assert (first.weights.late, first.weights.refused, first.weights.right) == (1, 1, 1)
    assert (seen.buffer, seen.slot_s) == (15, 1.0)
    assert (other.discount, other.trace, other.clip, other.sigma) == (0.9, 0.8, 0.3, (0.25, 0.08))
    assert (other.weights.late, other.weights.refused, other.weights.right) == (1, 2, 3)
    assert (described.buffer, described.slot_s) == (4, 0.1)
    assert [recipe.sigma for recipe, _ in teaching] == [(0.15, 0.06), (0.3, 0.3)]


def test_a_training_on_the_processor_takes_one_thread(tmp_path: Path) -> None:
    import torch

    from stretto.training.run import Options, Training

    torch.set_num_threads(2)
    Training([SYSTEM], Description("joint", 1.0), Options(recipe(iterations=1), 16), tmp_path)
    assert torch.get_num_threads() == 1


def test_the_command_trains_batch_sizes_where_there_are_some(tmp_path: Path) -> None:
    from stretto.cli.main import app

    asked = ["train", str(TOML.with_name("batching.toml")), "--out", str(tmp_path), "--batching"]
    done = CliRunner().invoke(app, [*asked, "--iterations", "1", "--systems", "16"])
    assert done.exit_code == 0, done.output
    (policy,) = load_policies(tmp_path / "policy.safetensors")
    assert policy.description.batching and policy.description.outputs == 4 + 2 * 6


def test_the_command_teaches_a_rule_first(tmp_path: Path) -> None:
    """One that gives the last instance most queries, which no reward would suggest."""
    from stretto.cli.main import app

    asked = ["train", str(TOML), "--out", str(tmp_path), "--iterations", "5", "--systems", "64"]
    done = CliRunner().invoke(app, [*asked, "--teach-lull", "1,1,1,7", "--teach-burst", "1,1,1,7"])
    assert done.exit_code == 0, done.output
    (policy,) = load_policies(tmp_path / "policy.safetensors")
    world = World([SYSTEM], policy.description, 32, 1)
    assert policy.decide(world.restart(5), world.setting)[0].mean(axis=0)[3] > 0.5
    alone = CliRunner().invoke(app, [*asked, "--resume"])
    assert alone.exit_code != 0 and "give the rule" in alone.output


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--teach-burst", "1,1,1,1"], "goes with --teach-lull"),
        (["--batching"], "no instance takes more than one query"),
        (["--teach-lull", "1,1,1,1", "--batching"], "teach none with"),
        (["--teach-lull", "1,1,1,1", "--random-settings", "4"], "teach none with"),
        (["--teach-lull", "1,much"], "numbers with commas"),
        (["--teach-lull", "1,1"], "for each of the 4 instances"),
        (["--sigma", "much"], "give one number from 0.001 to 10, or two"),
        (["--sigma", "1,2,3"], "give one number from 0.001 to 10, or two"),
        (["--workers", "2"], "are for a repository"),
        (["--device", "nowhere"], "PyTorch cannot compute there"),
        (["--out", str(TOML)], "the folder cannot be made"),
    ],
)
def test_what_the_command_refuses(tmp_path: Path, more: list[str], says: str) -> None:
    from stretto.cli.main import app

    done = CliRunner().invoke(app, ["train", str(TOML), "--out", str(tmp_path), "--iterations", "1", *more])
    assert done.exit_code != 0 and says in done.output
