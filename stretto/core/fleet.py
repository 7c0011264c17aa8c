"""The fleet: slots of named kinds of hardware, each with a worker that is there or not.

A slot keeps its number for life, so that plans, rates and measured latencies stay true when its worker leaves and comes
back, and when slots are added behind it (the dispatcher's `worker_left`, `worker_joined` and `enlarge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.core.errors import StrettoError
from stretto.core.worker import Worker


@dataclass(frozen=True)
class Fleet:
    """`present` by slot; left out, every worker is there."""

    slots: tuple[Worker, ...]
    present: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.present:
            object.__setattr__(self, "present", (True,) * len(self.slots))
        if len(self.present) != len(self.slots):
            raise StrettoError(f"{len(self.slots)} slots are present or not, but {len(self.present)} are told of")
        if len({worker.name for worker in self.slots}) != len(self.slots):
            raise StrettoError("two workers have the same name")

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def kinds(self) -> tuple[str, ...]:
        """In the order of their first slots."""
        return tuple(dict.fromkeys(worker.kind for worker in self.slots))

    def counts(self) -> dict[str, int]:
        """How many are there, by kind; a kind of which none is there is told of too."""
        counts = dict.fromkeys(self.kinds, 0)
        for worker, is_there in zip(self.slots, self.present, strict=True):
            counts[worker.kind] += is_there
        return counts


def numbered(fleet: Sequence[Worker], kind: str, count: int, memory_bytes: int) -> tuple[Worker, ...]:
    """`count` further workers of a kind, named by the first numbers that the kind does not use yet."""
    used = {worker.name for worker in fleet}
    names = (f"{kind}-{number}" for number in range(len(fleet) + count))
    free = [name for name in names if name not in used][:count]
    return tuple(Worker(name, kind, memory_bytes) for name in free)
