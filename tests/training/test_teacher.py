"""Rules by hand that policies are taught: what they decide, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.planners.edge_rl.encoding import Setting, Situation, idle
from stretto.planners.edge_rl.instances import instances_of
from stretto.sim.switching import Switching
from stretto.training.settings import instance_deployment
from stretto.training.teacher import Rule, teacher
from stretto.training.world import System

SYSTEM = System(
    instance_deployment((2, 2), (10.0, 40.0), (0.77, 0.82), 300.0), Switching((10.0, 160.0), (500.0, 500.0 / 18))
)
SETTING = Setting.of([(instances_of(SYSTEM.deployment), 300_000_000)])
LULL, BURST = (4.0, 4.0, 46.0, 46.0), (30.0, 42.0, 14.0, 14.0)


def decided(rule: Rule, length: tuple[int, ...], phase: int | None = None, slot_s: float = 1.0) -> list[float]:
    nothing = idle(4, 10.0)
    told = None if phase is None else np.array([phase])
    seen = Situation(**vars(nothing) | {"length": np.array([length]), "phase": told})
    shares, batches = teacher(rule, SYSTEM, slot_s)(seen, SETTING)
    assert batches is None and shares.sum() == pytest.approx(1.0)
    return [round(100 * share, 3) for share in shares[0].tolist()]


def test_a_burst_is_told_from_the_queues_where_the_phase_is_not_seen() -> None:
    rule = Rule(LULL, BURST)
    assert decided(rule, (0, 0, 1, 0)) == list(LULL)
    assert decided(rule, (0, 0, 1, 1)) == list(BURST)
    assert decided(rule, (1, 0, 0, 0)) == list(BURST)
    assert decided(Rule(LULL, BURST, waiting=3), (0, 0, 1, 1)) == list(LULL)
    assert decided(rule, (1, 0, 1, 1), phase=0) == list(LULL)
    assert decided(rule, (0, 0, 0, 0), phase=1) == list(BURST)


def test_a_heavy_instance_with_long_work_gets_nothing() -> None:
    """Five queries of 40 ms are two thirds of 300 ms."""
    assert decided(Rule(LULL, BURST), (0, 0, 4, 0)) == list(BURST)
    assert decided(Rule(LULL, BURST), (0, 0, 5, 0)) == pytest.approx([100 * 30 / 72, 100 * 42 / 72, 0, 0], abs=0.001)
    assert decided(Rule(LULL, (0, 0, 1, 1)), (0, 0, 5, 0)) == [50, 50, 0, 0]
    assert decided(Rule(LULL, spare=0.2), (0, 0, 5, 4))[2:] == [0, 10]


def test_heavy_instances_are_filled_in_bursts_without_weights() -> None:
    """Each finishes 25 in a second, of 160 that come; a fifth is spare."""
    rule = Rule(LULL, spare=0.2)
    assert decided(rule, (3, 0, 0, 4), phase=1) == [38.75, 38.75, 12.5, 10]
    assert decided(rule, (3, 0, 0, 4), phase=1, slot_s=0.5) == [40, 40, 12.5, 7.5]
    assert decided(rule, (3, 0, 0, 4), phase=0) == list(LULL)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0, -1.0), (0.0,) * 4, (1.0, 1.0, 1.0, float("nan"))])
def test_weights_that_do_not_fit_are_refused(weights: tuple[float, ...]) -> None:
    for rule in (Rule(weights), Rule(LULL, weights)):
        with pytest.raises(StrettoError, match="for each of the 4 instances"):
            teacher(rule, SYSTEM, 1.0)


def test_equal_instances_have_no_heavy_ones() -> None:
    equal = System(instance_deployment((0, 2), (10.0, 40.0), (0.77, 0.82), 300.0), SYSTEM.load)
    with pytest.raises(StrettoError, match="differ in accuracy"):
        teacher(Rule((1.0, 1.0)), equal, 1.0)
