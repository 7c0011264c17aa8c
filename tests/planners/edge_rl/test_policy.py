"""The density of equation 9 against numerical integration; what policies see; files that round-trip and are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.view import Lines, View
from stretto.planners.edge_rl.encoding import (
    MOST_LOAD,
    MOST_WORK,
    Setting,
    Situation,
    encode_joint,
    encode_shared,
    situation,
)
from stretto.planners.edge_rl.file import load_policies, read_arrays, save_policies, write_arrays
from stretto.planners.edge_rl.instances import BUFFER, LARGEST_BATCH, instances_of
from stretto.planners.edge_rl.planner import EdgeRL
from stretto.planners.edge_rl.policy import HIDDEN, Description, Policy, log_density, softmax
from stretto.planners.edge_rl.reward import Weights, rewards, shortfalls
from stretto.planning.served import served_session
from stretto.sim.switching import Switching
from stretto.training.settings import instance_deployment
from stretto.training.world import System

SERVICE_MS, ACCURACY, SLO_MS = (9.9, 33.3), (0.7769, 0.8278), 300.0
DEPTH = LENGTHS = 16  # ages, and queue lengths from 0 to 15, as published


def four() -> Deployment:
    return instance_deployment((2, 2), SERVICE_MS, ACCURACY, SLO_MS)


def made(deployment: Deployment | None = None, seed: int = 1, **more: object) -> Policy:
    """A policy with a random network."""
    served = deployment or four()
    names = [variant.name for variant in served.variants]
    description = Description("joint", 1.0, **more).described(
        instances_of(served), names, served.applications[0].slo_ns
    )  # type: ignore[arg-type]
    random = np.random.default_rng(seed)
    sizes = [description.inputs, *HIDDEN, description.outputs]
    layers = tuple(
        (random.normal(0, 0.3, (after, before)).astype(np.float32), random.normal(0, 0.3, after).astype(np.float32))
        for before, after in pairwise(sizes)
    )
    return Policy(description, layers)


# -- the density ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("means", "sigma"), [((0.3, -0.5, 0.1), 0.698), ((1.5, 0.0, -1.0), 0.4)])
def test_the_density_integrates_to_one(means: tuple[float, ...], sigma: float) -> None:
    def density(second: float, first: float) -> float:
        shares = np.array([first, second, 1.0 - first - second])
        return float(np.exp(log_density(shares, np.array(means), sigma)))

    total, _ = integrate.dblquad(density, 1e-9, 1 - 1e-9, 1e-9, lambda first: max(1e-9, 1 - first - 1e-9), epsabs=1e-6)
    assert total == pytest.approx(1.0, abs=2e-3)


def test_the_density_is_that_of_what_is_drawn() -> None:
    means, sigma = np.array([0.4, -0.2, 0.0, 0.1]), 0.6
    drawn = softmax(means + sigma * np.random.default_rng(3).normal(size=(400_000, 4)))
    mean = drawn.mean(axis=0)
    # The same by weighting draws of another law with the two densities.
    other = np.array([0.0, 0.0, 0.2, 0.0])
    others = softmax(other + 0.8 * np.random.default_rng(4).normal(size=(400_000, 4)))
    weight = np.exp(log_density(others, means, sigma) - log_density(others, other, 0.8))
    assert weight.mean() == pytest.approx(1.0, abs=0.01)
    assert (others * weight[:, None]).mean(axis=0) == pytest.approx(mean, abs=0.003)


# -- what is seen, and the reward -------------------------------------------------------------------------------------


def test_the_joint_encoding_is_that_of_the_paper() -> None:
    crew = instances_of(four())
    setting = Setting.of([(crew, 300_000_000)])
    arrivals = np.full((4, DEPTH), -1)
    arrivals[2, :3] = (100_000_000, 250_000_000, 400_000_000)
    lines = Lines(
        np.array([0, 1, 3, 20]), np.array([0, 1, 1, 1]), np.array([-1, 400_000_000, 366_700_000, 0]), arrivals
    )
    seen = situation(lines, 400_000_000, np.array([12.0]))
    features = encode_joint(seen, setting, False, False).reshape(4, -1)
    assert features.shape == (4, LENGTHS + 1 + DEPTH)
    assert [int(row[:LENGTHS].argmax()) for row in features] == [0, 1, 3, BUFFER] and (
        features[:, :LENGTHS].sum(axis=1) == 1
    ).all()
    assert features[:, LENGTHS] == pytest.approx([0, 0, 1, 1])
    assert features[2, LENGTHS + 1 : LENGTHS + 5] == pytest.approx([0.5, 0.25, 0, 0])
    full = encode_joint(replace(seen, phase=np.array([1]), since=np.array([2.0])), setting, True, False)
    assert full[0, -3:].tolist() == [0.0, 1.0, 0.5]
    assert encode_shared(seen, setting, 1.0).shape == (1, 4, Description("shared", 1.0).inputs)


def test_compiled_encoding_equals_the_formulas_bit_by_bit() -> None:
    random = np.random.default_rng(4)
    shape, now_ns = (50, 4), 10**10
    started_ns = np.where(random.random(shape) < 0.3, -1, now_ns - random.integers(-(10**6), 10**8, shape))
    arrival_ns = np.where(random.random((*shape, DEPTH)) < 0.5, -1, now_ns - random.integers(0, 10**9, (*shape, DEPTH)))
    length, running = random.integers(0, 20, shape), random.integers(0, 6, shape)
    setting = Setting(random.uniform(1e6, 1e8, shape), random.random(shape), random.uniform(1e8, 1e9, (50, 1)))
    seen = situation(Lines(length, running, started_ns, arrival_ns), now_ns, np.full(50, 20.0))
    elapsed_ns = np.where(started_ns >= 0, np.maximum(now_ns - started_ns, 0), 0)
    age_ns = np.where(arrival_ns >= 0, now_ns - arrival_ns, 0)
    assert (seen.elapsed_ns == elapsed_ns).all() and (seen.age_ns == age_ns).all()
    expected = np.concatenate(
        (
            np.minimum(length, BUFFER)[..., None] == np.arange(LENGTHS),
            np.minimum(elapsed_ns / setting.service_ns, 1.0)[..., None],
            np.minimum(age_ns / (MOST_WORK * setting.slo_ns[..., None]), 1.0),
            running[..., None] / LARGEST_BATCH,
        ),
        axis=2,
    ).astype(np.float32)
    assert (encode_joint(seen, setting, False, True) == expected.reshape(50, -1)).all()
    assert (encode_joint(seen, setting, False, False) == expected[..., :-1].reshape(50, -1)).all()


def test_the_shared_encoding_instance_by_instance() -> None:
    """Each feature in plain words: of itself, of its queue, of the load that it would meet, and of the others."""
    random = np.random.default_rng(8)
    service_ms, accuracy, slo_ms, rate = (10.0, 25.0, 25.0, 40.0), (0.5, 0.7, 0.7, 0.9), 200.0, 30.0
    length = np.array([[0, 2, 9, 40]])
    elapsed_ns = np.array([[0, 5_000_000, 90_000_000, 1_000_000]])
    setting = Setting(np.array([service_ms]) * 1e6, np.array([accuracy]), np.array([[slo_ms * 1e6]]))
    seen = Situation(length, length, elapsed_ns, random.integers(0, 10**8, (1, 4, DEPTH)), np.array([rate]))
    found = encode_shared(seen, setting, 1.0)[0]

    speed = [1e3 / ms for ms in service_ms]
    work = []  # left on each, in SLOs
    for ms, queued, spent in zip(service_ms, length[0], elapsed_ns[0] / 1e6, strict=True):
        work.append(min(max((queued * ms - min(spent, ms)) / slo_ms, 0.0), MOST_WORK))
    for one in range(4):
        as_good = [other for other in range(4) if accuracy[other] >= accuracy[one]]
        better = [other for other in range(4) if accuracy[other] > accuracy[one]]
        loads = [rate / sum(speed[other] for other in group) if group else MOST_LOAD for group in (as_good, better)]
        expected = [
            4 * service_ms[one] / slo_ms,
            10 * (accuracy[one] - min(accuracy)),
            10 * (max(accuracy) - accuracy[one]),
            speed[one] / sum(speed),
            1 / 4,
            length[0, one] / (BUFFER + 1),
            work[one],
            rate / sum(speed),
            *loads,
            sum(speed[other] * work[other] for other in as_good) / sum(speed[other] for other in as_good),
            sum(speed[other] * work[other] for other in range(4)) / sum(speed),
        ]
        assert found[one, :12] == pytest.approx([min(value, MOST_LOAD) if 7 <= place < 10 else value
                                                 for place, value in enumerate(expected)], rel=1e-5)  # fmt: skip


def test_the_last_layer_of_a_network_is_not_squashed() -> None:
    policy = made()
    features = np.random.default_rng(3).normal(size=(5, policy.description.inputs)).astype(np.float32)
    values = features
    for weight, bias in policy.layers[:-1]:
        values = np.tanh(values @ weight.T + bias)
    weight, bias = policy.layers[-1]
    expected = values @ weight.T + bias
    assert policy.outputs(features) == pytest.approx(expected, rel=1e-5) and np.abs(expected).max() > 1


def test_a_policy_for_any_instances_begins_with_accurate_ones_filled() -> None:
    """Light instances of 10 ms and heavy ones of 40 ms, an SLO of 400 ms, slots of 40 ms."""
    served = instance_deployment((2, 2), (10.0, 40.0), ACCURACY, 400.0)
    setting = Setting.of([(instances_of(served), 400_000_000)])
    description = Description("shared", 0.04)
    zeros = ((np.zeros((1, description.inputs), np.float32), np.zeros(1, np.float32)),)
    policy = Policy(description, zeros)

    def shares(lengths: list[int], rate: float) -> list[float]:
        nothing = np.zeros((1, 4), np.int64)
        seen = Situation(np.array([lengths]), nothing, nothing, np.zeros((1, 4, DEPTH), np.int64), np.array([rate]))
        decided: list[float] = policy.decide(seen, setting)[0][0].tolist()
        return decided

    # Nothing waits: each heavy one may take three queries (one in the slot, two that wait), and two come.
    assert shares([0, 0, 0, 0], 50.0) == pytest.approx([0, 0, 0.5, 0.5], abs=3e-3)
    # Twelve come: three for each heavy one, three for each light one, which take twelve together.
    assert shares([0, 0, 0, 0], 300.0) == pytest.approx([0.25] * 4, abs=3e-3)
    # One heavy instance has its three already, the other one of them.
    assert shares([0, 0, 3, 1], 300.0) == pytest.approx([5 / 12, 5 / 12, 0, 2 / 12], abs=3e-3)
    # All have more than may wait: by how much each can still answer in time.
    rates = np.array([(0.9 + 0.1 - 0.5) / 10, (0.9 + 0.1 - 0.75) / 10, (0.9 + 0.1 - 0.5) / 40, (0.9 + 0.1 - 0.4) / 40])
    assert shares([20, 30, 5, 4], 300.0) == pytest.approx(list(rates / rates.sum()), abs=3e-3)


def test_the_reward_is_equation_two() -> None:
    counts = np.array([[10, 2, 5, 1, 4]])  # light on time and late, heavy on time and late, refused
    accuracy = np.array([ACCURACY])
    assert rewards(counts, accuracy, Weights(1.0, 2.0, 3.0))[0] == pytest.approx(
        -3 - 8 + 3 * (10 * 0.7769 + 5 * 0.8278)
    )
    assert shortfalls(counts, accuracy, Weights(), np.array([22]))[0] == pytest.approx(
        rewards(counts, accuracy, Weights())[0] - 22 * 0.8278
    )
    heavier = Weights().adjusted(0.02, 0.01)
    assert heavier.late == heavier.refused > 1 and Weights().adjusted(0.0, 0.01).late < 1


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_round_trips(tmp_path: Path) -> None:
    first, second = made(), made(instance_deployment((2, 1), SERVICE_MS, ACCURACY, SLO_MS), seed=2)
    save_policies(tmp_path / "p.safetensors", [first, second])
    again = load_policies(tmp_path / "p.safetensors")
    assert [policy.description for policy in again] == [first.description, second.description]
    for before, after in zip((first, second), again, strict=True):
        for (weight, bias), (weight_again, bias_again) in zip(before.layers, after.layers, strict=True):
            assert (weight == weight_again).all() and (bias == bias_again).all()


def test_our_files_are_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    write_arrays(tmp_path / "a.safetensors", {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"what": "x"})
    assert (safetensors.load_file(tmp_path / "a.safetensors")["x"] == [[0, 1, 2], [3, 4, 5]]).all()
    safetensors.save_file({"y": np.ones(3)}, tmp_path / "b.safetensors", metadata={"a": "b"})
    arrays, metadata = read_arrays(tmp_path / "b.safetensors")
    assert arrays["y"].tolist() == [1, 1, 1] and metadata == {"a": "b"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\xff" * 40,
        (10**9).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        b"\x80\x04pickle",
    ],
)
def test_what_is_no_policy_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.safetensors").write_bytes(content)
    with pytest.raises(StrettoError, match=r"^p\.safetensors: "):
        load_policies(tmp_path / "p.safetensors")


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (tmp_path / "p.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(StrettoError, match="damaged"):
        load_policies(tmp_path / "p.safetensors")


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It says neither the buffer, which always was 15, nor which latency: that by which the deployment decides."""
    policy = made()
    arrays = {
        f"0.{place}.{name}": array
        for place, pair in enumerate(policy.layers)
        for name, array in zip(("weight", "bias"), pair, strict=True)
    }
    head = {"encoding": "joint", "slot_s": 1.0, "instances": policy.description.instances, "slo_ms": SLO_MS}
    head |= {"sees_phase": False, "batching": False, "trained": {}, "layers": len(policy.layers)}
    write_arrays(tmp_path / "p.safetensors", arrays, {"stretto": json.dumps({"format": 1, "policies": [head]})})
    (again,) = load_policies(tmp_path / "p.safetensors")
    assert (again.description.buffer, again.description.latency) == (15, "")
    assert EdgeRL(policies=(again,))(View(four())).lanes[0].capacity == 15
    future = json.dumps({"format": 99, "policies": [head]})
    write_arrays(tmp_path / "q.safetensors", arrays, {"stretto": future})
    with pytest.raises(StrettoError, match=r"^q\.safetensors: written by a later version"):
        load_policies(tmp_path / "q.safetensors")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buffer", 0),
        ("buffer", 10**9),
        ("buffer", 1.5),
        ("slot_s", 0.0),
        ("slot_s", 1e9),
        ("latency", "p42"),
        ("encoding", "x"),
    ],
)
def test_a_file_with_absurd_values_is_refused(tmp_path: Path, key: str, value: object) -> None:
    policy = made()
    object.__setattr__(policy.description, key, value)
    save_policies(tmp_path / "p.safetensors", [policy])
    with pytest.raises(StrettoError, match=r"^p\.safetensors: "):
        load_policies(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (instance_deployment((2, 1), SERVICE_MS, ACCURACY, SLO_MS), "is for 4 instances, and there are 3"),
        (instance_deployment((1, 3), SERVICE_MS, ACCURACY, SLO_MS), "is for light as instance 1, which is heavy here"),
        (instance_deployment((2, 2), (9.9, 40.0), ACCURACY, SLO_MS), "33.3 ms a query, which takes 40 ms here"),
        (instance_deployment((2, 2), SERVICE_MS, ACCURACY, 200.0), "SLO of 300 ms, which is 200 ms here"),
    ],
)
def test_a_policy_for_other_instances_is_refused(tmp_path: Path, other: Deployment, says: str) -> None:
    save_policies(tmp_path / "p.safetensors", [made()])
    planner = EdgeRL(str(tmp_path / "p.safetensors"))
    with pytest.raises(StrettoError, match=says):
        planner(View(other))
    assert planner(View(four())).planner == "edge_rl"


def test_a_policy_of_batch_sizes_is_refused_where_nothing_batches() -> None:
    """Its smallest batches would wait for queries that cannot join."""
    planner = EdgeRL(policies=(made(batching=True),))
    with pytest.raises(StrettoError, match="no instance here takes more than one query at once"):
        planner(View(four()))
    (application,) = four().applications
    light, heavy = application.variants
    both = LatencyProfile.linear(4.95, 4.95, 5, light.profiles[0].kind)
    some = replace(four(), applications=(replace(application, variants=(replace(light, profiles=(both,)), heavy)),))
    assert {lane.release.max_batch for lane in planner(View(some)).lanes} <= {1, 3, 5}


def test_a_policy_that_is_told_the_phase_cannot_be_served(tmp_path: Path) -> None:
    save_policies(tmp_path / "p.safetensors", [made(sees_phase=True)])
    with pytest.raises(StrettoError, match="nobody can measure"):
        EdgeRL(str(tmp_path / "p.safetensors"))


def test_the_policy_is_switched_when_an_instance_fails(tmp_path: Path) -> None:
    """Section 6.3: one policy for each setting of instances; by speed where none was trained."""
    whole, left = made(), made(instance_deployment((2, 1), SERVICE_MS, ACCURACY, SLO_MS), seed=2)
    planner = EdgeRL(policies=(whole, left))
    deployment = four()

    def weights(*alive: bool) -> list[float]:
        return list(planner(View(deployment, alive=np.array(alive))).routes[0].weights)

    everybody = weights(True, True, True, True)
    assert min(everybody) > 0
    one_heavy = weights(True, True, False, True)
    assert one_heavy[2] == 0 and sum(one_heavy) == pytest.approx(1)
    idle = situation(
        Lines(*(np.zeros(3, np.int64) for _ in range(2)), np.full(3, -1), np.full((3, DEPTH), -1)), 0, np.ones(1)
    )
    setting = Setting.of([(instances_of(instance_deployment((2, 1), SERVICE_MS, ACCURACY, SLO_MS)), 300_000_000)])
    assert [one_heavy[0], one_heavy[1], one_heavy[3]] == pytest.approx(left.decide(idle, setting)[0][0])
    heavy_alone = weights(False, False, True, True)  # no policy: by speed
    assert heavy_alone == [0, 0, 0.5, 0.5]


# -- what travels with a policy ---------------------------------------------------------------------------------------


def spread() -> Deployment:
    """Instances whose 95th percentile is half as much again as their mean. Published results go by the former."""
    deployment = four()
    (application,) = deployment.applications
    scale = np.array([1.0, 0.9, 1.5, 2.0])[:, None]  # mean, p50, p95, p99
    variants = []
    for variant in application.variants:
        (profile,) = variant.profiles
        table_ns = (profile.table_ns[Quantile.MEAN] * scale).astype(np.int64)
        variants.append(replace(variant, profiles=(replace(profile, table_ns=table_ns),)))
    served = replace(application, variants=tuple(variants))
    return replace(deployment, applications=(served,), quantile=Quantile.P95)


@pytest.mark.parametrize("trained", [Quantile.MEAN, Quantile.P95])
def test_the_latency_of_the_training_is_that_of_serving(tmp_path: Path, trained: Quantile) -> None:
    """A server decides by means and a scenario by the 95th percentile, and both serve the same policy the same way."""
    load = Switching((10.0, 180.0), (50.0, 5.0))
    description = System(replace(spread(), quantile=trained), load).description(Description("joint", 1.0))
    assert description.instances[3][1] == pytest.approx(33.3 * (1.5 if trained is Quantile.P95 else 1.0))
    policy = Policy(description, made().layers)
    save_policies(tmp_path / "p.safetensors", [policy])
    plans = []
    for quantile in (Quantile.MEAN, Quantile.P95):
        planner = EdgeRL(str(tmp_path / "p.safetensors"))
        plans.append(planner(View(replace(spread(), quantile=quantile), lines=waiting(7))))
    assert plans[0].routes == plans[1].routes and len({round(w, 6) for w in plans[0].routes[0].weights}) == 4


def waiting(count: int) -> Callable[[int], Lines]:
    """So many queries at every instance, the oldest of them half served."""

    def lines(depth: int) -> Lines:
        arrived = np.where(np.arange(depth) < count, 0, -1)
        full = np.full(4, count)
        return Lines(full, np.minimum(full, 1), np.full(4, 0), np.tile(arrived, (4, 1)))

    return lines


def test_the_slot_of_a_policy_is_kept_when_it_is_served(tmp_path: Path) -> None:
    policy = made()
    quick = Policy(replace(policy.description, slot_s=0.25), policy.layers)
    save_policies(tmp_path / "p.safetensors", [quick])
    options = {"policy": str(tmp_path / "p.safetensors")}
    assert served_session("edge_rl", options).rhythm.period_s == 0.25
    assert served_session("edge_rl", options, period_s=0.25).rhythm.period_s == 0.25
    assert served_session("edge_rl").rhythm.period_s == 0.02  # that of the package
    with pytest.raises(StrettoError, match="slots of 250 ms, and cannot plan each 1000 ms"):
        served_session("edge_rl", options, period_s=1.0)


def test_the_buffer_of_a_policy_is_kept_when_it_is_served(tmp_path: Path) -> None:
    description = replace(made().description, buffer=3)
    assert description.inputs == 4 * (4 + 1 + 4)  # lengths 0 … 3, the elapsed time, four ages
    random = np.random.default_rng(5)
    sizes = [description.inputs, 8, description.outputs]
    layers = tuple(
        (random.normal(0, 0.3, (after, before)).astype(np.float32), np.zeros(after, np.float32))
        for before, after in pairwise(sizes)
    )
    save_policies(tmp_path / "p.safetensors", [Policy(description, layers)])
    plan = EdgeRL(str(tmp_path / "p.safetensors"))(View(four(), lines=waiting(3)))
    assert [lane.capacity for lane in plan.lanes] == [3] * 4
    seen = situation(waiting(3)(4), 10**8, np.array([12.0]))
    features = encode_joint(seen, Setting.of([(instances_of(four()), 300_000_000)]), False, False, 3).reshape(4, 9)
    assert (features[:, :4] == [0, 0, 0, 1]).all() and features[0, 5:] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0])
