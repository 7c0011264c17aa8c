"""The ground of edge RL: its instances, its loads, its published rows, and how each approach is run on it.

Service times are not printed in the paper. Row HW-E of its table 2 (33.19% refused at 180/s) gives 33.3 ms for the
heavy instance, and the share of the heavy instances in row SQ about 9.9 ms for the light one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import LatencyProfile
from stretto.core.view import Planner, View
from stretto.planners.edge_rl.baselines import infaas_shares, stationary_shares
from stretto.planners.edge_rl.encoding import Setting, Situation
from stretto.planners.edge_rl.file import load_policies
from stretto.planners.edge_rl.instances import Instance
from stretto.planners.edge_rl.policy import Description, Policy
from stretto.planning.served import served_session
from stretto.sim.many import Case, ManySimulations
from stretto.sim.ports import simulator_ports
from stretto.sim.results import Summary
from stretto.sim.service import Deterministic, Service
from stretto.sim.simulator import simulate
from stretto.sim.switching import Switching
from stretto.training.evaluate import Decide, Evaluation, Figures, evaluate, evaluation_of
from stretto.training.settings import instance_deployment
from stretto.training.teacher import Rule
from stretto.training.world import System, World
from stretto.twin.measure import setting_from_scenario
from stretto.twin.setting import Setting as MeasuredSetting
from stretto.twin.spot import SpotJudge

SERVICE_MS = (9.9, 33.3)
ACCURACY = (0.7769, 0.8278)
NAMES = ("efficientnet", "pnasnet")
SLO_MS = 300.0
RATES, HELD_S = (10.0, 180.0), (500.0, 500.0 / 18)
MAIN = Switching(RATES, HELD_S)
PERIODIC = Switching(RATES, HELD_S, is_periodic=True)
SLOTS = 600_000  # of an evaluation, as published
SYSTEMS = 400  # that share them
MOST_WAITING = 256  # in one lane, where the plan has no bound that matters
WARM_UP_SLOTS = 5
SEED = 9_001  # no training and no validation uses it
POLICIES = Path(__file__).parent.parent / "examples" / "edge"
FOR_FIGURES = Path(__file__).parent / "results" / "edge_rl"

# Table 2, in %: goodput and violations over all; then by phase goodput, violations, refused, late, and the share of the
# heavy instances. None: not printed, or misprinted, so that refused and late do not add up to violations (RL-PO-B has
# those of RL-PO, and the last row 0.563 and 0.008).
Columns = tuple[float | None, ...]
PHASE_COLUMNS = ("goodput", "violations", "refused", "late", "heavy")


@dataclass(frozen=True)
class PublishedRow:
    """One approach on one load."""

    overall: tuple[float, float]
    bursty: Columns
    normal: Columns


ALL_LIGHT = PublishedRow((77.69, 0), (77.69, 0, 0, 0, None), (77.69, 0, 0, 0, None))
PUBLISHED: dict[str, dict[str, PublishedRow]] = {
    "main": {
        "LW": ALL_LIGHT,
        "HW": PublishedRow((41.43, 49.95), (0.089, 99.89, 48.11, 51.78, None), (82.78, 0.007, 0, 0.007, None)),
        "HW-E": PublishedRow((69.05, 16.61), (55.31, 33.19, 33.19, 0, None), (82.78, 0, 0, 0, None)),
        "RL-PO": PublishedRow((79.24, 1.447), (75.85, 2.891, 1.499, 1.393, 12.78), (82.62, 0.003, 0, 0.003, 96.25)),
        "RL-FO": PublishedRow((80.14, 0.366), (77.64, 0.732, 0.293, 0.439, 10.66), (82.62, 0, 0, 0, 97.25)),
        "RL-PO-B": PublishedRow((79.49, 0.884), (76.56, 1.594, None, None, 3.664), (82.43, 0.174, 0, 0.174, 93.14)),
        "RL-FO-B": PublishedRow((80.18, 0.079), (77.82, 0.161, 0.064, 0.096, 5.099), (82.54, 0, 0, 0, 93.69)),
        "SQ": PublishedRow((79.59, 0), (78.86, 0, 0, 0, 22.85), (80.37, 0, 0, 0, 52.65)),
        "SA": PublishedRow((80.39, 0.499), (78.01, 0.998, 0.102, 0.895, 19.99), (82.78, 0, 0, 0, 99.99)),
        "INFaaS": PublishedRow((78.22, 1.695), (76.12, 3.389, 0.001, 3.388, 24.22), (80.35, 0, 0, 0, 52.18)),
    },
    "periodic": {
        "LW": ALL_LIGHT,
        "HW": PublishedRow((41.45, 49.93), (0.125, 99.85, 48.14, 51.71, None), (82.77, 0.011, 0, 0.011, None)),
        "HW-E": PublishedRow((69.05, 16.59), (55.32, 33.17, 33.17, 0, None), (82.78, 0, 0, 0, None)),
        "RL-PO": PublishedRow((79.23, 1.553), (75.75, 3.103, 2.246, 0.857, 12.11), (82.72, 0.003, 0, 0.003, 98.78)),
        "RL-FO": PublishedRow((80.27, 0.329), (77.76, 0.651, None, None, 11.63), (82.77, 0.008, 0, 0.008, 99.93)),
    },
}


def hybrid(slo_ms: float = SLO_MS, heavy_ms: float = SERVICE_MS[1]) -> Deployment:
    """Two light and two heavy instances."""
    return instance_deployment((2, 2), (SERVICE_MS[0], heavy_ms), ACCURACY, slo_ms, NAMES)


def batching(deployment: Deployment) -> Deployment:
    """The same instances, which take up to five queries together; five take three times as long as one."""
    (application,) = deployment.applications
    variants = []
    for variant in application.variants:
        (profile,) = variant.profiles
        half_ms = profile.latency_ns(1) / 2e6
        variants.append(replace(variant, profiles=(LatencyProfile.linear(half_ms, half_ms, 5, profile.kind),)))
    return Deployment((replace(application, variants=tuple(variants)),), deployment.workers, deployment.quantile)


def all_of(light: int, heavy: int, heavy_ms: float = SERVICE_MS[1]) -> Deployment:
    """Instances of one model."""
    return instance_deployment((light, heavy), (SERVICE_MS[0], heavy_ms), ACCURACY, SLO_MS, NAMES)


def trained(name: str) -> Policy:
    """A committed policy."""
    return load_policies(policy_file(name))[0]


def policy_file(name: str) -> Path:
    """Where a committed policy lies: those of figure 3 beside its results, the others where a user finds them."""
    return (FOR_FIGURES if name.startswith("latency_") else POLICIES) / f"{name}.safetensors"


def in_world(
    system: System, description: Description, decide: Decide, *, slots: int = SLOTS, seed: int = SEED
) -> Evaluation:
    """Of a way of dealing, over so many slots of one second."""
    world = World([system], description, SYSTEMS, seed)
    return in_long_run(evaluate(world, decide, round(slots / description.slot_s), seed)[0], system.load)


def of_policy(
    name: str,
    load: Switching,
    deployment: Deployment | None = None,
    *,
    slots: int = SLOTS,
    published_batches: bool = False,
) -> Evaluation:
    """A committed policy on a load; with `published_batches` its batches are gathered by the rule of the paper."""
    policy = trained(name)
    description = replace(policy.description, published_batches=published_batches)
    return in_world(System(deployment or hybrid(), load), description, policy.decide, slots=slots)


def told_shares(lull: Sequence[float], burst: Sequence[float]) -> Decide:
    """A way of dealing that is told the phase and has one set of shares for each."""
    by_phase = np.array((lull, burst), np.float64)

    def decide(seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], None]:
        assert seen.phase is not None
        return by_phase[seen.phase], None

    return decide


def stationary(crew: Sequence[Instance], load: Switching, slo_ns: int, tenths: bool = False) -> Decide:
    """SA: told the phase, it has one distribution for each."""
    lull, burst = (stationary_shares(crew, rate, slo_ns, 0.02, tenths).tolist() for rate in load.rates)
    return told_shares(lull, burst)


def by_hand(lull_light: float = 0.08, burst_heavy: float = 0.28) -> Rule:
    """A rule that is not told the phase. Its shares were chosen on the validation's seeds, so that violations are below
    1.45% by two standard errors.
    """
    calm = (lull_light / 2, lull_light / 2, (1 - lull_light) / 2, (1 - lull_light) / 2)
    busy = ((1 - burst_heavy) / 2, (1 - burst_heavy) / 2, burst_heavy / 2, burst_heavy / 2)
    return Rule(calm, busy)


def unequal(one_heavy: float, other_heavy: float) -> Rule:
    """A rule told the phase: unequal shares for the heavy instances in lulls, since one that gets little is not overrun
    before the slot ends in which a burst begins.
    """
    light = (1 - one_heavy - other_heavy) / 2
    return Rule((light, light, one_heavy, other_heavy))


def infaas(crew: Sequence[Instance], systems: int) -> Decide:
    """INFaaS, in slots of 0.1 s."""
    last = np.zeros(systems, np.int64)

    def decide(seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], None]:
        shares, last[:] = infaas_shares(crew, seen.length, last)
        return shares, None

    return decide


@dataclass(frozen=True)
class Row:
    """One approach on one load; the shares are in percent."""

    name: str
    evaluation: Evaluation

    def values(self) -> dict[str, Any]:
        row: dict[str, Any] = {"approach": self.name}
        for part in ("overall", "bursty", "normal"):
            figures: Figures = getattr(self.evaluation, part)
            keys = (
                ("goodput", "violations")
                if part == "overall"
                else ("goodput", "violations", "refused", "late", "heavy")
            )
            row |= {f"{part} {key}": 100 * getattr(figures, key) for key in keys}
        row["queries"] = self.evaluation.overall.queries
        return row


def of_plan(
    deployment: Deployment,
    planner: Planner,
    load: Switching,
    *,
    slots: int = SLOTS,
    seed: int = SEED,
    service: Service | None = None,
) -> Evaluation:
    """A planner that plans once, whatever its lanes are."""
    plan = planner(View(deployment, expected_rates=(load.mean_rate,)))
    lanes = tuple(replace(lane, capacity=min(lane.capacity, MOST_WAITING)) for lane in plan.lanes)
    many = ManySimulations(
        [Case(deployment, replace(plan, lanes=lanes), load, service or Deterministic())], SYSTEMS, seed=seed
    )
    shares = np.full((SYSTEMS, len(plan.routes[0].lanes)), 1.0 / len(plan.routes[0].lanes))
    total: Any = 0
    for number in range(WARM_UP_SLOTS + slots // SYSTEMS):
        counts = many.run_slot(1.0, shares).counts
        total = total + (counts if number >= WARM_UP_SLOTS else 0)
    accuracy = np.array([[variant.accuracy for variant in deployment.variants]] * SYSTEMS)
    return in_long_run(evaluation_of(total, accuracy, accuracy.argmax(axis=1)), load)


def served(system: System, planner: str, seconds: float, seed: int, delays: Delays | None = None) -> Summary:
    """As a server would do it: the planner in its rhythm, its judge's trials on other seeds than the run."""
    source, given = system.load.source(), delays or Delays()

    def setting(deployment: Deployment) -> MeasuredSetting:
        return setting_from_scenario(deployment, source, system.service, given, seconds=600.0, seed=seed + 1)

    session = served_session(planner, ports=replace(simulator_ports(), judge=SpotJudge(setting)))
    return simulate(
        system.deployment,
        session,
        source,
        seconds=seconds,
        seed=seed,
        service=system.service,
        delays=given,
        replan_s=session.rhythm.period_for(system.deployment) or None,
    ).summary


def in_long_run(evaluation: Evaluation, load: Switching) -> Evaluation:
    """With the phases weighed by how many queries they bring in the long run (here half each): in 0.6 million slots,
    with a thousand bursts, their share would be off by one or two percent.
    """
    normal, bursty = asdict(evaluation.normal), asdict(evaluation.bursty)
    came = [rate * held for rate, held in zip(load.rates, load.seconds, strict=True)]
    share = came[1] / sum(came)
    overall = {key: (1 - share) * normal[key] + share * bursty[key] for key in normal}
    return replace(evaluation, overall=Figures(**overall | {"queries": evaluation.overall.queries}))
