"""What any policy that is told the phase at the start of each second can do at best: a bound, not a simulation.

Each heavy instance is a Markov decision process of its own: its state is the phase and the work before it, its action
the share of all queries that it gets for a second. A price on violations makes one sum of goodput and violations, and
policy iteration finds the most of it. That is a bound because all else is granted: shares of both instances need not
sum to one, and every query that no heavy instance gets is answered in time by a light one. Work and time go in steps of
an eighth of a service (4 ms); a query meets the work that is left at the end of its step.

For every price p ≥ 0 no policy has goodput + (0.4% − violations)·p above what is found, so none within 0.4% violations
has more goodput than the least of these.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from edge_rl_ground import ACCURACY, MAIN, SERVICE_MS, SLO_MS
from numpy.typing import NDArray

from stretto.planners.edge_rl.instances import BUFFER

HEAVY_INSTANCES = 2
STEPS = 8  # of a service
STEP_S = SERVICE_MS[1] / 1e3 / STEPS
SLOT_STEPS = round(1.0 / STEP_S)
WORKS = BUFFER * STEPS + 1
STATES = len(MAIN.rates) * WORKS
LATEST = (SLO_MS - SERVICE_MS[1]) / 1e3 / STEP_S  # a query that finds more work is late
MOST_ARRIVALS = 10  # in a step that are told apart from more
SHARES = np.concatenate((np.arange(0.0, 0.3, 0.01), np.arange(0.3, 1.01, 0.05)))
PRICES = np.arange(1.0, 3.01, 0.05)  # of a violation, in right answers

Numbers = NDArray[np.float64]


def one_step(share: float) -> tuple[Numbers, Numbers]:
    """Chances [state, next state], and queries expected [state, (on time, lost)]."""
    chances, ends = np.zeros((STATES, STATES)), np.zeros((STATES, 2))
    for phase, (rate, held_s) in enumerate(zip(MAIN.rates, MAIN.seconds, strict=True)):
        mean = rate * share * STEP_S
        came = np.array([math.exp(-mean) * mean**count / math.factorial(count) for count in range(MOST_ARRIVALS)])
        came[-1] += 1.0 - came.sum()
        stays = math.exp(-STEP_S / held_s)
        rows = phase * WORKS + np.arange(WORKS)
        work = np.maximum(np.arange(WORKS) - 1, 0)
        for count, chance in enumerate(came):
            chances[rows, phase * WORKS + work] += chance * stays
            chances[rows, (1 - phase) * WORKS + work] += chance * (1.0 - stays)
            one_more = came[count + 1 :].sum()
            is_refused = work > (BUFFER - 1) * STEPS
            ends[rows, np.where(is_refused | (work > LATEST), 1, 0)] += one_more
            work = np.where(is_refused, work, work + STEPS)
    return chances, ends


def one_slot(share: float) -> tuple[Numbers, Numbers]:
    """The same over a second, by doubling."""
    step, ends = one_step(share)
    all_steps, all_ends = np.eye(STATES), np.zeros_like(ends)
    left = SLOT_STEPS
    while left:
        if left & 1:
            all_ends += all_steps @ ends
            all_steps = all_steps @ step
        ends = ends + step @ ends
        step = step @ step
        left >>= 1
    return all_steps, all_ends


@cache
def slots() -> tuple[Numbers, Numbers]:
    """Of every share."""
    chances, ends = zip(*(one_slot(float(share)) for share in SHARES), strict=True)
    return np.stack(chances), np.stack(ends)


@cache
def best_sum(price: float) -> float:
    """Goodput less price times violations, of all queries: the most that there is."""
    chances, ends = slots()
    light, heavy = ACCURACY
    gains = (heavy - light) * ends[..., 0] - (light + price) * ends[..., 1]
    chosen = np.zeros(STATES, np.int64)
    states = np.arange(STATES)
    system = np.ones((STATES + 1, STATES + 1))
    system[-1] = 0.0
    system[-1, 0] = 1.0
    while True:
        system[:-1, :-1] = np.eye(STATES) - chances[chosen, states]
        values = np.linalg.solve(system, np.append(gains[chosen, states], 0.0))
        by_share = gains + chances @ values[:-1]
        better = by_share.argmax(axis=0)
        if (by_share[better, states] <= by_share[chosen, states] + 1e-9).all():
            return light + HEAVY_INSTANCES * float(values[-1]) / (SLOT_STEPS * STEP_S) / MAIN.mean_rate
        chosen = better


def most_goodput(violations: float) -> float:
    """No policy within these violations has more."""
    return min(best_sum(float(price)) + float(price) * violations for price in PRICES)


def least_violations(goodput: float) -> float:
    """No policy with this goodput has fewer."""
    return max((goodput - best_sum(float(price))) / float(price) for price in PRICES)
