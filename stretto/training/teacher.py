"""A rule by hand that a policy is taught before it learns by itself: one set of weights for lulls, one for bursts.

Left alone, a policy that is not told the phase of the load ends on one side of a valley (docs/design.md); a rule may
begin on the other. Heavy instances are those of the most accurate variant; the others are light.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.edge_rl.encoding import Setting, Situation
from stretto.planners.edge_rl.instances import instances_of
from stretto.sim.switching import Switching
from stretto.training.evaluate import Decide
from stretto.training.world import System

if TYPE_CHECKING:
    from stretto.training.ppo import Recipe

LONG = 2 / 3  # of the SLO: work at a heavy instance
LEAST = 1e-9  # so that light instances without weights share what heavy ones may not get
TAUGHT = 30  # iterations
TAUGHT_STEP, TAUGHT_MINIBATCH = (2e-3, 5e-5), 1024  # what a rule teaches takes many steps, and is lost in large ones
TAUGHT_SIGMA = (0.15, 0.06)  # with more noise it drifts to what is good with noise alone


@dataclass(frozen=True)
class Rule:
    """Weights by instance. Without `burst`, a heavy instance gets in bursts what it finishes in a slot, less a share of
    that to `spare` and what waits; light ones share the rest.
    """

    lull: tuple[float, ...]
    burst: tuple[float, ...] = ()
    waiting: int = 2  # queries at heavy instances that are taken for a burst, where the phase is not told
    spare: float = 8 * 0.0333  # 8 of the 30 queries that an instance of 33.3 ms finishes in a second


def taught(recipe: Recipe, sigma: tuple[float, float] | None = None) -> Recipe:
    """The recipe of a policy that follows a rule first, and then goes on in small steps; `sigma` is another noise."""
    noise = sigma or TAUGHT_SIGMA
    return replace(recipe, taught=TAUGHT, step=TAUGHT_STEP, sigma=noise, minibatch=TAUGHT_MINIBATCH)


def teacher(rule: Rule, system: System, slot_s: float) -> Decide:
    """What the rule decides for this system. A burst is told by the phase where it is seen; else by a busy light
    instance, or by what waits at the heavy ones. In bursts no heavy instance with long work gets anything; where
    `burst` says the weights, none does while one of them has.
    """
    crew = instances_of(system.deployment)
    if len({instance.accuracy for instance in crew}) < 2:
        raise StrettoError("a rule can be taught where instances differ in accuracy; here all are equal")
    lull = _shares(rule.lull, len(crew))
    burst = _shares(rule.burst, len(crew)) if rule.burst else None
    if burst is None and not isinstance(system.load, Switching):
        raise StrettoError("the rate of this load's bursts is not known; give the weights of bursts (--teach-burst)")
    expected = system.load.rates[1] * slot_s if isinstance(system.load, Switching) else 0.0  # queries of a burst's slot

    def decide(seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], None]:
        length = seen.length
        is_heavy = setting.accuracy == setting.accuracy.max(axis=1, keepdims=True)
        is_long = is_heavy & (length * setting.service_ns >= LONG * setting.slo_ns - 1e6)
        if burst is None:
            finished = slot_s * 1e9 / setting.service_ns
            heavy = np.maximum((1 - rule.spare) * finished - length, 0.0) / expected
            heavy[is_long | ~is_heavy] = 0.0
            heavy /= np.maximum(heavy.sum(axis=1, keepdims=True), 1.0)
        else:
            heavy = np.where(is_heavy & ~is_long.any(axis=1, keepdims=True), burst, 0.0)
        light = np.where(is_heavy, 0.0, 1.0 if burst is None else burst + LEAST)
        rest = (1 - heavy.sum(axis=1, keepdims=True)) * light / light.sum(axis=1, keepdims=True)
        return np.where(_is_burst(seen, is_heavy, rule.waiting)[:, None], heavy + rest, lull), None

    return decide


def _is_burst(seen: Situation, is_heavy: NDArray[np.bool_], waiting: int) -> NDArray[np.bool_]:
    if seen.phase is not None:
        return np.asarray(seen.phase == 1)
    at_light, at_heavy = ((seen.length * where).sum(axis=1) for where in (~is_heavy, is_heavy))
    return np.asarray((at_light > 0) | (at_heavy >= waiting))


def _shares(weights: Sequence[float], count: int) -> NDArray[np.float64]:
    if (
        len(weights) != count
        or not all(0 <= weight < math.inf for weight in weights)
        or not 0 < sum(weights) < math.inf
    ):
        raise StrettoError(
            f"a rule has one weight of zero or more for each of the {count} instances, and not only zeros"
        )
    return np.array(weights) / sum(weights)
