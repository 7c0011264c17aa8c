"""Filled tables: each cell against its rule, and what they are worth to few unequal workers."""

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.planners.joint.filling import filled
from stretto.planners.joint.planner import Joint
from stretto.planners.joint.process import process_of
from stretto.planners.joint.solve import solve_line, tables_of
from stretto.planners.joint.sweeps import WAITS
from stretto.planners.parts.task import task_of
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

SLO_NS = 150_000_000


def one_fast_and_seven_slow() -> Deployment:
    variants = []
    for name, accuracy, first, more in (("quick", 0.72, 32.0, 15.7), ("good", 0.80, 70.0, 45.0)):
        row = np.array([0.0, *(first + more * size for size in range(8))]) * 1e6
        profiles = tuple(
            LatencyProfile(np.tile((row * times).astype(np.int64), (len(Quantile), 1)), kind)
            for kind, times in (("fast", 1.0), ("slow", 2.0))
        )
        variants.append(Variant(name, accuracy, profiles))
    application = Application("app", SLO_NS, tuple(variants))
    return Deployment((application,), workers(1, "fast") + workers(7, "slow"), Quantile.MEAN)


def test_batches_grow_where_larger_ones_are_quicker_for_each_and_fit() -> None:
    deployment = one_fast_and_seven_slow()
    tasks = [task_of(deployment, 0, kind) for kind in ("fast", "slow")]
    process = process_of(tasks, [1.0, 7.0], 200.0, 50)
    tables = tables_of(process, solve_line(process))
    speed = process.batch * process.pace
    grown = waits = 0
    for kind, table in enumerate(tables):
        result = filled(process, kind, table)
        for n in range(1, table.shape[0]):
            for column in range(process.steps + 1):
                before, after = table[n, column], result[n, column]
                own = range(process.first[kind], process.first[kind + 1])
                if before < 0:
                    assert after == before
                elif after == WAITS:
                    pair = next(
                        a for a in own if process.variant[a] == process.variant[before] and process.batch[a] == 2
                    )
                    assert n == 1 and process.on_time[pair, column] == 1.0
                    waits += 1
                else:
                    could = [
                        speed[a]
                        for a in own
                        if process.variant[a] == process.variant[before]
                        and process.batch[before] <= process.batch[a] <= n
                        and (a == before or process.on_time[a, min(column + 1, process.steps)] == 1.0)
                    ]
                    assert process.variant[after] == process.variant[before]
                    assert speed[after] == max(could)
                    grown += after != before
    assert grown > 100 and waits > 10


def test_few_workers_near_saturation_answer_more_with_filled_batches() -> None:
    deployment = one_fast_and_seven_slow()
    load = 0.85 * fluid_goodput(deployment, [1.0])
    correct = [
        simulate(
            deployment, Joint(noise=0.0, margin=0.0, fills=fills), Load(Poisson(), load), seconds=100.0, seed=31
        ).summary.correct_on_time
        for fills in (False, True)
    ]
    assert correct[1] > correct[0] + 0.003
