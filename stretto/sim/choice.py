"""Weighted random picks by Walker's alias method: one uniform number per pick, whatever the number of options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.errors import StrettoError
from stretto.dispatch.alias import alias_table, as_shares


def shares_of(what: str, weights: Sequence[float]) -> NDArray[np.float64]:
    """Weights as shares that sum to one. `what` begins the sentence of the error."""
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise StrettoError(f"{what} need weights that are numbers") from None
    if array.ndim != 1 or len(array) == 0:
        raise StrettoError(f"{what} need at least one weight")
    if not np.isfinite(array).all() or (array < 0).any():
        raise StrettoError(f"{what} need weights that are finite and not negative")
    if array.max() == 0:
        raise StrettoError(f"{what} need a weight above zero; all of them are zero")
    return as_shares(array)


@dataclass(frozen=True, eq=False)
class AliasTables:
    """One or more distributions side by side. Distribution d owns the `count[d]` entries from `first[d]` on.

    Entry e is picked with chance `keep[e]` for its own value, else the value of its partner.
    """

    first: NDArray[np.int64]
    count: NDArray[np.int64]
    keep: NDArray[np.float64]
    value: NDArray[np.int64]
    other: NDArray[np.int64]

    @staticmethod
    def of(distributions: Sequence[tuple[Sequence[int], NDArray[np.float64]]]) -> AliasTables:
        """From (values, shares) pairs."""
        keeps, values, others = [], [], []
        for options, shares in distributions:
            keep, partner = alias_table(shares)
            owned = np.asarray(options, dtype=np.int64)
            keeps.append(keep)
            values.append(owned)
            others.append(owned[partner])
        count = np.array([len(keep) for keep in keeps], dtype=np.int64)
        return AliasTables(
            np.cumsum(count) - count, count, np.concatenate(keeps), np.concatenate(values), np.concatenate(others)
        )

    def by(self, distribution: NDArray[np.int64]) -> AliasTables:
        """The same entries, with the distributions renumbered: new d is old `distribution[d]`."""
        return AliasTables(self.first[distribution], self.count[distribution], self.keep, self.value, self.other)

    def pick(self, uniforms: NDArray[np.float64], which: NDArray[np.int64]) -> NDArray[np.int64]:
        """One value for each uniform number in [0, 1), from distribution `which`."""
        picked = np.empty(len(uniforms), dtype=np.int64)
        _pick(uniforms, which, self.first, self.count, self.keep, self.value, self.other, picked)
        return picked

    def pick_from_first(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """One value for each uniform number, all from distribution 0."""
        picked = np.empty(len(uniforms), dtype=np.int64)
        _pick_from_first(uniforms, int(self.count[0]), self.keep, self.value, self.other, picked)
        return picked


@compiled
def _pick(uniforms: Any, which: Any, first: Any, count: Any, keep: Any, value: Any, other: Any, picked: Any) -> None:
    for i in range(len(uniforms)):
        options = count[which[i]]
        draw = uniforms[i] * options
        column = min(int(draw), options - 1)
        entry = first[which[i]] + column
        picked[i] = value[entry] if draw - column < keep[entry] else other[entry]


@compiled
def _pick_from_first(uniforms: Any, options: int, keep: Any, value: Any, other: Any, picked: Any) -> None:
    for i in range(len(uniforms)):
        draw = uniforms[i] * options
        column = min(int(draw), options - 1)
        picked[i] = value[column] if draw - column < keep[column] else other[column]
