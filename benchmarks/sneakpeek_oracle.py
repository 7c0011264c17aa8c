"""The exact solution of SneakPeek's equation 3 for a few requests: what the other schedules are measured by.

Every order, every variant for each request, every batch of neighbours, every worker. It is the exact search with each
request as its own group; tests compare that search with plain enumeration.
"""

from __future__ import annotations

import numpy as np

from stretto.core.errors import StrettoError
from stretto.planners.sneakpeek.schedule import Schedule, as_schedule, evidence_worth, problem_of
from stretto.planners.sneakpeek.search import find_best
from stretto.planners.sneakpeek.window import Window

MOST_REQUESTS = 9
ROOM = 2_000_000


def optimal(window: Window) -> Schedule:
    """The schedule of highest expected utility. Every request must have a variant that some worker can run."""
    if not 1 <= len(window) <= MOST_REQUESTS:
        raise StrettoError(f"an exact schedule is for 1 to {MOST_REQUESTS} requests, not {len(window)}")
    groups = [np.array([place]) for place in range(len(window))]
    evidence = evidence_worth(window)
    *found, is_best = find_best(problem_of(window, groups, evidence), -1.0, ROOM)
    if not is_best:
        raise StrettoError("the exact schedule of this window takes too much memory; give fewer requests")
    return as_schedule(window, groups, found, [], is_best)
