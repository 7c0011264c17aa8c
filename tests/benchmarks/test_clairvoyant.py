"""The bound on all schedules: no schedule of a tiny case is better, and where queries flow it is the fluid bound."""

import itertools

import numpy as np
import pytest

from benchmarks.clairvoyant import STEP_S, most_correct_on_time, throughput
from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.sim.bounds import fluid_accuracy

SLO_S = 0.1
VARIANTS = (("quick", 0.03, 0.6), ("slow", 0.07, 0.9))  # seconds of a query, accuracy


def deployment(worker_count: int = 1, batches: int = 1) -> Deployment:
    """A batch takes no longer than one query of it would alone and a third as long for each of the others."""
    variants = []
    for name, seconds, accuracy in VARIANTS:
        row = [0] + [round(1e9 * seconds * (2 + batch) / 3) for batch in range(1, batches + 1)]
        table_ns = np.tile(np.array(row, np.int64), (len(Quantile), 1))
        variants.append(Variant(name, accuracy, (LatencyProfile(table_ns, "cpu"),)))
    return Deployment(
        (Application("a", round(SLO_S * 1e9), tuple(variants)),), workers(worker_count, "cpu"), Quantile.MEAN
    )


def best_schedule(arrivals_s: np.ndarray) -> float:
    """One worker, one query at a time: any order, and each query by any variant or not at all."""
    best = 0.0
    for order in itertools.permutations(range(len(arrivals_s))):
        for chosen in itertools.product((None, *VARIANTS), repeat=len(order)):
            free_s = value = 0.0
            for query, variant in zip(order, chosen, strict=True):
                if variant is None:
                    continue
                end_s = max(free_s, arrivals_s[query]) + variant[1]
                if end_s <= arrivals_s[query] + SLO_S:
                    free_s, value = end_s, value + variant[2]
            best = max(best, value)
    return best / len(arrivals_s)


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_of_a_tiny_case_is_better(seed: int) -> None:
    arrivals_s = np.sort(np.random.default_rng(seed).uniform(0.0, 0.12, 4))
    bound, best = most_correct_on_time(deployment(), arrivals_s), best_schedule(arrivals_s)
    assert best <= bound + 1e-9
    assert bound <= max(accuracy for _, _, accuracy in VARIANTS) + 1e-9


def test_alone_every_query_has_the_best_variant_and_at_once_only_what_fits() -> None:
    assert most_correct_on_time(deployment(), np.array([0.0, 1.0])) == pytest.approx(0.9)
    crowd = np.zeros(1000)
    work_s = SLO_S + STEP_S  # until the end of the last step that a query touches
    best = max(accuracy / seconds for _, seconds, accuracy in VARIANTS)
    assert most_correct_on_time(deployment(), crowd) == pytest.approx(best * work_s / len(crowd))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_steady_stream_has_the_fluid_bound(share: float) -> None:
    served = deployment(worker_count=3, batches=4)
    rate = share * 3 * throughput(served, 0, SLO_S)
    arrivals_s = np.arange(0.0, 60.0, 1.0 / rate)
    fluid = fluid_accuracy(served, [rate]).correct_share
    assert fluid - 1e-6 <= most_correct_on_time(served, arrivals_s) <= fluid + 0.003, "at the end there is time left"
