"""The workers that a server is told to have: devices, how many of each, and whose profiles hold there.

cpu*2                       two workers on the processor
cuda:0                      one GPU
cpu*2,threads=4,kind=NAME   four threads each, by the profiles of that kind
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stretto.backends.source import DEVICES, MAX_THREADS
from stretto.core.errors import StrettoError
from stretto.core.fleet import numbered
from stretto.core.worker import UNLIMITED_MEMORY, Worker
from stretto.repository.machine import accelerator_count, accelerators

if TYPE_CHECKING:
    from stretto.repository.repository import Repository

MAX_WORKERS = 1024


@dataclass(frozen=True)
class WorkerSpec:
    """`count` equal workers; 0: one for each core but one, which is left for the sockets; on a GPU one."""

    device: str = "cpu"
    count: int = 1
    threads: int = 1  # that a worker gives a model
    kind: str | None = None  # of machine, whose profiles decide; None: this machine's
    memory_bytes: int = UNLIMITED_MEMORY

    def __post_init__(self) -> None:
        name, colon, number = self.device.partition(":")
        if name not in DEVICES or (colon and (name == "cpu" or not _is_count(number))):
            raise StrettoError(f"there is no device {self.device[:40]!r}; there are {', '.join(DEVICES)} (as cuda:0)")
        if not 0 <= self.count <= MAX_WORKERS:
            raise StrettoError(f"workers is {self.count}; it must be from 1 to {MAX_WORKERS}, or 0 for the default")
        if not 1 <= self.threads <= MAX_THREADS:
            raise StrettoError(f"threads is {self.threads}; it must be from 1 to {MAX_THREADS}")

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def on_each_gpu(self) -> tuple[WorkerSpec, ...]:
        """One on each GPU of this machine; as it is where none is known."""
        return tuple(replace(self, device=f"cuda:{number}", count=1) for number in range(accelerator_count())) or (
            self,
        )

    @property
    def workers(self) -> int:
        if self.is_gpu:
            return self.count or 1
        return self.count or max(1, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else 1)


def read_worker(text: str, memory_bytes: int = UNLIMITED_MEMORY) -> WorkerSpec:
    """From what a user writes: DEVICE[*COUNT][,threads=N][,kind=NAME]."""
    first, *settings = text.split(",")
    device, star, count = first.partition("*")
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name.strip() not in ("threads", "kind") or not equals or not value.strip():
            raise StrettoError(f"worker {text[:60]!r}: {setting[:40]!r} is not threads=N or kind=NAME")
        values[name.strip()] = value.strip()
    numbers = {"count": count if star else "1", "threads": values.get("threads", "1")}
    for name, value in numbers.items():
        if not _is_count(value) or not int(value):
            raise StrettoError(f"worker {text[:60]!r}: {name} is {value[:20]!r}; write a whole number, as in cpu*2")
    return WorkerSpec(device.strip(), int(numbers["count"]), int(numbers["threads"]), values.get("kind"), memory_bytes)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def deployed_workers(fleet: Sequence[WorkerSpec], repository: Repository) -> tuple[Worker, ...]:
    """The slots of a fleet, in order, each of the kind whose profiles decide there."""
    check_kinds(fleet)
    workers: tuple[Worker, ...] = ()
    for spec in fleet:
        kind = repository.kind_for(spec.device, spec.kind)
        workers += numbered(workers, kind, spec.workers, spec.memory_bytes)
    if not 1 <= len(workers) <= MAX_WORKERS:
        raise StrettoError(f"a server has from 1 to {MAX_WORKERS} workers, not {len(workers)}")
    return workers


def check_kinds(fleet: Sequence[WorkerSpec]) -> None:
    """StrettoError where nobody says which GPU's profiles hold."""
    for spec in fleet:
        if spec.is_gpu and spec.kind is None and not accelerators():
            raise StrettoError(
                f"there is no GPU on this machine for a worker on {spec.device}; "
                "for another machine's, name its kind (kind=…)"
            )


def slot_specs(fleet: Sequence[WorkerSpec]) -> tuple[WorkerSpec, ...]:
    """By slot."""
    return tuple(spec for spec in fleet for _ in range(spec.workers))
