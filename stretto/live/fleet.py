"""The workers that a server is told to have: devices, how many of each, and whose profiles hold there.

cpu*2                       two workers on the processor
cuda:0                      one GPU
cpu*2,threads=4,kind=NAME   four threads each, by the profiles of that kind
cpu*2,variant=NAME          which run only that variant; several times for several
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stretto.backends.source import DEVICES, MAX_THREADS
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.fleet import numbered
from stretto.core.instances import check_names, kind_of_instances, with_instances
from stretto.core.profile import Quantile
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
    variants: tuple[str, ...] = ()  # the only ones that it runs, as NAME or APPLICATION/NAME; none: all

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

    @property
    def text(self) -> str:
        """As a user writes it; `read_worker` reads it back."""
        device = self.device if self.workers == 1 else f"{self.device}*{self.workers}"
        threads = () if self.threads == 1 else (f"threads={self.threads}",)
        kind = () if self.kind is None else (f"kind={self.kind}",)
        return ",".join((device, *threads, *kind, *(f"variant={name}" for name in self.variants)))


def read_worker(text: str, memory_bytes: int = UNLIMITED_MEMORY) -> WorkerSpec:
    """From what a user writes: DEVICE[*COUNT][,threads=N][,kind=NAME][,variant=NAME]…"""
    first, *settings = text.split(",")
    device, star, count = first.partition("*")
    values: dict[str, str] = {}
    variants: list[str] = []
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if name not in ("threads", "kind", "variant") or not equals or not value:
            raise StrettoError(f"worker {text[:60]!r}: {setting[:40]!r} is not threads=N, kind=NAME or variant=NAME")
        if name == "variant":
            variants.append(value)
        else:
            values[name] = value
    numbers = {"count": count if star else "1", "threads": values.get("threads", "1")}
    for name, value in numbers.items():
        if not _is_count(value) or not int(value):
            raise StrettoError(f"worker {text[:60]!r}: {name} is {value[:20]!r}; write a whole number, as in cpu*2")
    device, kind = device.strip(), values.get("kind")
    return WorkerSpec(
        device, int(numbers["count"]), int(numbers["threads"]), kind, memory_bytes, tuple(dict.fromkeys(variants))
    )


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


def deployment_on(
    fleet: Sequence[WorkerSpec], repository: Repository, quantile: Quantile = Quantile.P95
) -> tuple[Deployment, tuple[str, ...]]:
    """What a repository serves on a fleet, each worker with the variants that it is named for; and the sentences to
    tell the user about the profiles that this rests on.
    """
    deployment, doubts = repository.deployment(deployed_workers(fleet, repository), quantile)
    return with_instances(deployment, [spec.variants for spec in slot_specs(fleet)]), doubts


def kind_on(spec: WorkerSpec, repository: Repository) -> str:
    """The kind of these workers in a deployment."""
    return kind_of_instances(repository.kind_for(spec.device, spec.kind), spec.variants)


def check_variants(fleet: Iterable[WorkerSpec], repository: Repository) -> None:
    """StrettoError where a worker is named for a variant that the repository does not have."""
    labels = [f"{files.name}/{variant.name}" for files in repository.applications for variant in files.variants]
    if repository.unreadable:  # and may have it
        return
    for spec in fleet:
        try:
            check_names(spec.variants, labels)
        except StrettoError as error:
            raise StrettoError(f"worker {spec.text[:60]!r}: {error}") from None


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
