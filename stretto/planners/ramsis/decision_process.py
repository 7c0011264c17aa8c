"""A finite decision process as plain arrays: rows of transition probabilities, grouped by state. Knows no queue.

Every row earns a reward and has a length, and a policy is judged by reward over length in the long run: by the step
where all lengths are one, by the query where a length is a number of queries, by the second where it is a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from stretto.core.compiled import compiled


@dataclass(frozen=True, eq=False)
class DecisionProcess:
    """Rows `first[s]` … `first[s + 1] − 1` are the actions of state s.

    Row i leads to `target[k]` with `probability[k]` for k in `begin[i]` … `begin[i + 1] − 1`.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    target: NDArray[np.int32]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    length: NDArray[np.float64]  # above zero

    @property
    def states(self) -> int:
        return len(self.first) - 1

    def chain(self, policy: NDArray[np.int64]) -> Any:
        """The transition matrix of a policy (a row number per state), as a sparse matrix."""
        counts = self.begin[policy + 1] - self.begin[policy]
        begin = np.concatenate([[0], np.cumsum(counts)])
        taken = np.arange(begin[-1]) + np.repeat(self.begin[policy] - begin[:-1], counts)
        return csr_matrix((self.probability[taken], self.target[taken], begin), shape=(self.states, self.states))


@compiled
def improve(
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    target: NDArray[np.int32],
    probability: NDArray[np.float64],
    reward: NDArray[np.float64],
    length: NDArray[np.float64],
    gain: float,
    value: NDArray[np.float64],
    better: NDArray[np.float64],
    policy: NDArray[np.int64],
) -> tuple[float, float]:
    """One sweep over all rows: `better` and `policy` are filled. Returns bounds of the best reward per length.

    With q(s, a) = reward − gain·length + Σ p·value, no policy is above gain + max (q − value)/length over all rows, and
    the greedy one is not below gain + min (q − value)/length over its own: both average (q − value)/length.
    """
    low, high = np.inf, -np.inf
    for state in range(len(first) - 1):
        best, chosen = -np.inf, first[state]
        for row in range(first[state], first[state + 1]):
            q = reward[row] - gain * length[row]
            for k in range(begin[row], begin[row + 1]):
                q += probability[k] * value[target[k]]
            high = max(high, (q - value[state]) / length[row])
            if q > best:
                best, chosen = q, row
        better[state] = best
        policy[state] = chosen
        low = min(low, (best - value[state]) / length[chosen])
    return low, high
