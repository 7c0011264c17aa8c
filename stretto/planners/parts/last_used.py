"""What was made before and may be wanted again: what was used last, in bounded memory.

A load that goes up and down finds its plans; one that is never twice the same, as on a machine that changes its pace,
must not fill the memory with them. A table for a fast load takes megabytes, so bytes are counted beside numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from stretto.core.plan import Plan, Table, Tables
from stretto.planners.parts.policy import Policy

MOST_BYTES = 64 << 20  # one plan for nine fast applications on three kinds of workers is nearly as large

K = TypeVar("K")
V = TypeVar("V")


class LastUsed(Generic[K, V]):
    """What was not used for longest gives way; what came last is always there."""

    def __init__(self, most: int, bytes_of: Callable[[V], int], most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes_of, self._most_bytes = most, bytes_of, most_bytes
        self._bytes = 0
        self._values: dict[K, V] = {}  # the one used last at the end

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        if key not in self._values:
            return None
        value = self._values[key] = self._values.pop(key)
        return value

    def put(self, key: K, value: V) -> V:
        self._drop(key)
        self._values[key] = value
        self._bytes += self._bytes_of(value)
        while len(self._values) > 1 and (len(self._values) > self._most or self._bytes > self._most_bytes):
            self._drop(next(iter(self._values)))
        return value

    def clear(self) -> None:
        self._values.clear()
        self._bytes = 0

    def _drop(self, key: K) -> None:
        if key in self._values:
            self._bytes -= self._bytes_of(self._values.pop(key))


def bytes_of_tables(tables: Iterable[Table]) -> int:
    return sum(table.cells.nbytes + table.variant.nbytes + table.batch.nbytes for table in tables)


def bytes_of_plan(plan: Plan) -> int:
    """Of its tables, which are nearly all of it."""
    chosen = [lane.select for lane in plan.lanes]
    of_kinds = [table for select in chosen if isinstance(select, Tables) for table in select.tables]
    return bytes_of_tables([*of_kinds, *(select for select in chosen if isinstance(select, Table))])


def bytes_of_policy(policy: Policy) -> int:
    return policy.variant.nbytes + policy.batch.nbytes


def bytes_of_policies(policies: Iterable[Policy]) -> int:
    return sum(map(bytes_of_policy, policies))
