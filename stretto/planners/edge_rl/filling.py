"""What a policy for any instances begins with: weights that keep accurate instances filled and give others the rest.

A query that an accurate instance can still answer in good time should go there, and no more than those: so many as it
finishes until the next decision, and as many as may wait for it. How many come until then is the measured load times
the slot. A network that has to find this quotient by itself stays below a single shared queue in half of all settings:
out of care it leaves accurate instances idle in bursts. What it learns is a factor on each of these weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAITING = 0.2  # of the SLO: work that an instance may have before it beside what it does in the slot
LIMIT = 0.9  # of the SLO: of what is left over, an instance takes by how far its work is from here
LEAST_ROOM = 0.02
LEAST_RATE = 1.0  # queries/s, of a load that is not known yet
LEAST_SHARE = 1e-3  # so that a factor can still change it

Shares = NDArray[np.float64]


def filling_shares(
    work: Shares, rate: Shares, service: Shares, better: Shares, as_good: Shares, slot: Shares
) -> Shares:
    """Weights [system, instance] of a slot. `work` that an instance has before it, the `service` of a query and the
    `slot` ([system, 1]) are in SLOs, `rate` [system, 1] is in queries an SLO. `better` and `as_good` [system, instance,
    other] say which others are more accurate, and which at least as accurate.
    """
    wanted = np.maximum(WAITING + slot - work, 0.0) / (service * rate * slot)  # shares of all that come
    to_better = (better @ wanted[..., None])[..., 0]
    to_equals = (as_good @ wanted[..., None])[..., 0] - to_better
    shares = wanted * np.minimum(1.0, np.maximum(1.0 - to_better, 0.0) / np.maximum(to_equals, 1e-12))
    room = np.maximum(LIMIT + slot - work, LEAST_ROOM) / service
    left = np.maximum(1.0 - shares.sum(axis=1, keepdims=True), 0.0)
    filled: Shares = np.maximum(shares + left * room / room.sum(axis=1, keepdims=True), LEAST_SHARE)
    return filled
