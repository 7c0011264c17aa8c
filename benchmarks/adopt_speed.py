"""CPU time of a change of plan: adopting large tables while queries wait, and rerouting many weighted lanes.

python -m benchmarks.adopt_speed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Lane, Plan, Route, RouteRule, Table, by_application
from stretto.core.profile import NS_PER_S, LatencyProfile
from stretto.core.worker import workers
from stretto.dispatch.dispatcher import Dispatcher

VARIANTS = 8  # of each application
WORKERS = 4  # of each lane
SHAPE = (2049, 65)  # queued, slack


def deployment(applications: int, crew: int) -> Deployment:
    models = tuple(
        Variant(f"v{number}", 0.5 + number / 100, (LatencyProfile.linear(1.0 + number, 2.0, 64),))
        for number in range(VARIANTS)
    )
    return Deployment(
        tuple(Application(f"a{number}", 100 * NS_PER_S, models) for number in range(applications)), workers(crew)
    )


def plan_of_tables(applications: int, seed: int) -> Plan:
    """A lane of its own for each application, with a table of random cells."""
    rng = np.random.default_rng(seed)
    lanes = []
    for number in range(applications):
        variant = rng.integers(number * VARIANTS, (number + 1) * VARIANTS, SHAPE).astype(np.int32)
        table = Table(1_000_000, variant, rng.integers(0, 64, SHAPE).astype(np.int32))
        lanes.append(Lane(f"l{number}", tuple(range(WORKERS * number, WORKERS * (number + 1))), table))
    return by_application(tuple(lanes))


def adopt_ms(applications: int = 4, waiting: int = 5000, *, in_order: bool = False, rounds: int = 40) -> list[float]:
    """CPU milliseconds of each of many adoptions, of two plans in turn, while so many queries wait."""
    dispatcher = Dispatcher(deployment(applications, WORKERS * applications), plan_of_tables(applications, 0))
    for worker in range(WORKERS * applications):
        dispatcher.worker_left(0, worker)  # so that all of them wait
    slack_ns = np.random.default_rng(1).integers(10**12, 2 * 10**12, waiting)
    if in_order:
        slack_ns.sort()
    for number, slack in enumerate(slack_ns.tolist()):
        dispatcher.submit(number, number % applications, slack)
    plans = [plan_of_tables(applications, seed) for seed in (1, 2)]
    dispatcher.adopt(waiting, plans[1])  # compiles
    return cpu_ms(lambda turn: dispatcher.adopt(waiting + turn, plans[turn % 2]), rounds)


def reroute_ms(lanes: int = 64, rounds: int = 400) -> list[float]:
    """CPU milliseconds of each of many changes of the weights of so many lanes."""
    rng = np.random.default_rng(3)
    routes = [
        (Route(RouteRule.WEIGHTED, tuple(range(lanes)), weights=tuple(rng.random(lanes).tolist())),) for _ in range(2)
    ]
    plan = Plan(tuple(Lane(f"l{number}", (number,), Fixed(0)) for number in range(lanes)), routes[0])
    dispatcher = Dispatcher(deployment(1, lanes), plan)
    dispatcher.reroute(0, routes[1])  # compiles
    return cpu_ms(lambda turn: dispatcher.reroute(turn, routes[turn % 2]), rounds)


def cpu_ms(call: Callable[[int], None], rounds: int) -> list[float]:
    """Of every call, which is given its number."""
    times = []
    for turn in range(rounds):
        began = time.process_time_ns()
        call(turn)
        times.append((time.process_time_ns() - began) / 1e6)
    return times


def main() -> None:
    """Prints median, fastest and slowest."""
    for what, times in (
        ("adopt, deadlines in order", adopt_ms(in_order=True)),
        ("adopt, deadlines in any order", adopt_ms()),
        ("reroute 64 weighted lanes", reroute_ms()),
    ):
        print(f"{what:32} median {median(times):.3f} ms, {min(times):.3f} to {max(times):.3f}")


if __name__ == "__main__":
    main()
