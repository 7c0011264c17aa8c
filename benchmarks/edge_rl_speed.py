"""What edge RL costs: routing one query, a step of the policy in NumPy, `reroute`, and the speed of its environment.

All of one core. The environment is measured as `stretto train` uses it: as many systems as it has unless asked
otherwise, other weights for each in every slot, and what is seen of each encoded after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from edge_rl_ground import MAIN, hybrid
from harness import Benchmark

from stretto.core.compiled import compiled
from stretto.core.plan import Route, RouteRule
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.records import routes
from stretto.dispatch.routes import weighted
from stretto.planners.edge_rl.encoding import Setting, encode_joint, idle
from stretto.planners.edge_rl.instances import dealt_plan, instances_of
from stretto.planners.edge_rl.planner import default_policies
from stretto.planners.edge_rl.policy import Description
from stretto.training import SYSTEMS_AT_ONCE
from stretto.training.world import System, World

COPIES, SLOTS, ROUNDS = (256, SYSTEMS_AT_ONCE, 2048), 60, 5
AIM_REQUESTS, AIM_ROUTE_NS, AIM_STEP_MS, AIM_REROUTE_MS = 3e6, 100.0, 0.2, 0.1
QUERIES = 2_000_000


@compiled
def route_many(state: Any, count: int) -> int:
    """The alias draw alone, again and again; the sum keeps it from being left out."""
    s = state[0]
    total = 0
    for _ in range(count):
        total += weighted(s, routes(s)[0])
    return total


def cpu_s(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The median of some rounds, in seconds of CPU."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return median(times)


def requests_per_s(copies: int) -> tuple[float, float]:
    """Simulated requests and slots per CPU second, encoding included; the fastest of some rounds."""
    system = System(hybrid(), MAIN)
    description = system.description(Description("joint", 1.0))
    world = World([system], description, copies, 3)
    weights = np.random.default_rng(1).dirichlet((3.5, 3.5, 1.5, 1.5), (8, copies))
    world.step(weights[0])
    best = 0.0
    for _ in range(ROUNDS):
        before, began = world.requests, time.process_time()
        for slot in range(SLOTS):
            seen, _ = world.step(weights[slot % 8])
            encode_joint(seen, world.setting, False, False)
        took = time.process_time() - began
        best = max(best, (world.requests - before) / took)
    return best, best / MAIN.mean_rate


def main() -> None:
    """Four claims."""
    bench = Benchmark("edge_rl_speed")
    served = hybrid()
    crew = instances_of(served)
    dispatcher = Dispatcher(served, dealt_plan(served, [crew], [np.array([0.4, 0.3, 0.2, 0.1])], planner="bench"))
    state = dispatcher.memory.state
    route_many(state, 10)
    route_ns = cpu_s(lambda: route_many(state, QUERIES)) / QUERIES * 1e9
    (policy,) = default_policies()
    setting, seen = Setting.of([(crew, served.applications[0].slo_ns)]), idle(len(crew), 20.0)
    step_ms = cpu_s(lambda: [policy.decide(seen, setting) for _ in range(1000)])
    turns = [
        (Route(RouteRule.WEIGHTED, (0, 1, 2, 3), weights),) for weights in ((0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4))
    ]
    dispatcher.reroute(0, turns[0])
    reroute_ms = cpu_s(lambda: [dispatcher.reroute(1, turns[turn % 2]) for turn in range(1000)])
    speeds = {copies: requests_per_s(copies) for copies in COPIES}
    for copies, (requests, slots) in speeds.items():
        bench.row(systems=copies, requests_per_s=requests, slots_per_s=slots)
    requests, _ = speeds[SYSTEMS_AT_ONCE]
    what = f"environment of {SYSTEMS_AT_ONCE} systems, as stretto train has: simulated requests/s of one core"
    bench.claim(what, paper=None, target=f"≥ {AIM_REQUESTS:.0f}", ours=requests, met=requests >= AIM_REQUESTS)
    for name, ours, aim in (
        ("routing one query by the alias table, ns", route_ns, AIM_ROUTE_NS),
        ("one policy step in NumPy, ms", step_ms, AIM_STEP_MS),
        ("reroute, ms", reroute_ms, AIM_REROUTE_MS),
    ):
        bench.claim(name, paper="a few ns" if "alias" in name else None, target=f"≤ {aim}", ours=ours, met=ours <= aim)
    bench.finish()


if __name__ == "__main__":
    main()
