"""One policy trained on random settings, on 20 that it has not seen, beside what needs no training.

Service times vary in half of the settings. SQ, SA (told the phase each second, exact shares) and the policy (each
fiftieth of a second, told nothing) run in the same systems; beside it the weights that it begins with, before any
learning. The judged default is what `stretto simulate --planner judged` would serve: candidates tried on other seeds at
the loads that it measures. It takes a minute and more of planning for each setting, so it runs on the first few alone,
beside `joint`, `leave_it` and the policy, all served (columns `served …`): the same queries come to each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from edge_rl_ground import in_world, of_plan, stationary
from harness import Benchmark
from numpy.typing import NDArray

from stretto.core.plan import Delays
from stretto.planners.edge_rl.baselines import SingleQueue
from stretto.planners.edge_rl.encoding import BEGINNING, Setting, Situation
from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.planner import default_policies
from stretto.planners.edge_rl.policy import Description, Policy, softmax
from stretto.planners.leave_it import LeaveIt
from stretto.planning.served import served_session
from stretto.sim.ports import simulator_ports
from stretto.sim.simulator import simulate
from stretto.training.evaluate import Decide
from stretto.training.settings import random_systems
from stretto.training.world import System
from stretto.twin.measure import setting_from_scenario
from stretto.twin.spot import SpotJudge

SETTINGS, SETTINGS_SEED = 20, 90_001  # training has seed 11
SLOT_SECONDS, SEED = 24_000, 90_002
SERVED_SECONDS, SERVED_SETTINGS = 1200.0, 3
SERVED = ("edge_rl", "leave_it", "joint", "judged")
AIM = 18


def served(system: System, planner: str) -> float:
    """Share of queries answered right and on time, as a server would do it."""
    source = system.load.source()

    def setting(deployment):  # type: ignore[no-untyped-def]
        return setting_from_scenario(deployment, source, system.service, Delays(), seconds=600.0, seed=SEED + 1)

    session = served_session(planner, ports=replace(simulator_ports(), judge=SpotJudge(setting)))
    run = simulate(
        system.deployment,
        session,
        source,
        seconds=SERVED_SECONDS,
        seed=SEED,
        service=system.service,
        replan_s=session.rhythm.period_for(system.deployment) or None,
    )
    return run.summary.correct_on_time


def begins_with(policy: Policy) -> Decide:
    """The policy without its network."""

    def decide(seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], None]:
        return softmax(policy.encode(seen, setting)[..., BEGINNING].astype(np.float64)), None

    return decide


def main() -> None:
    """All settings."""
    bench = Benchmark("edge_rl_settings", seed=SEED)
    (policy,) = default_policies()
    above = {"SQ": 0, "SA": 0, "both": 0}
    systems = random_systems(SETTINGS, SETTINGS_SEED)
    for number, system in enumerate(bench.steps(systems, SETTINGS, "settings")):
        crew = instances_of(system.deployment)
        slo_ns = system.deployment.applications[0].slo_ns
        learned = in_world(system, policy.description, policy.decide, slots=SLOT_SECONDS, seed=SEED).overall
        begun = in_world(system, policy.description, begins_with(policy), slots=SLOT_SECONDS, seed=SEED).overall
        told = system.description(Description("joint", 1.0, sees_phase=True))
        decide = stationary(crew, system.load, slo_ns)
        approximated = in_world(system, told, decide, slots=SLOT_SECONDS, seed=SEED).overall
        single, left = (
            of_plan(
                system.deployment, planner, system.load, slots=SLOT_SECONDS, seed=SEED, service=system.service
            ).overall
            for planner in (SingleQueue(), LeaveIt())
        )
        wins = {"SQ": learned.goodput > single.goodput, "SA": learned.goodput > approximated.goodput}
        for name, won in wins.items():
            above[name] += won
        above["both"] += all(wins.values())
        bench.row(
            setting=number,
            lull=system.load.rates[0],
            burst=system.load.rates[1],
            learned=100 * learned.goodput,
            learned_violations=100 * learned.violations,
            before_learning=100 * begun.goodput,
            SQ=100 * single.goodput,
            SA=100 * approximated.goodput,
            SA_violations=100 * approximated.violations,
            leave_it=100 * left.goodput,
            leave_it_violations=100 * left.violations,
            **{f"served {name}": 100 * served(system, name) for name in SERVED if number < SERVED_SETTINGS},
        )
    for name, count in above.items():
        what = f"settings of {SETTINGS} not seen in training in which the policy is above {name}"
        bench.claim(what, paper=None, target=f"≥ {AIM}", ours=count, met=count >= AIM)
    keys = ("learned", "learned_violations", "before_learning", "SQ", "SA", "SA_violations")
    keys += ("leave_it", "leave_it_violations")
    few = [f"served {name}" for name in SERVED]
    means = {key: float(np.mean([row[key] for row in bench.rows if key in row])) for key in (*keys, *few)}
    bench.row(setting="mean", **means)
    bench.finish()


if __name__ == "__main__":
    main()
