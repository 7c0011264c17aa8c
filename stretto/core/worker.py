"""Workers: one accelerator, or a share of the CPU, that runs one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.core.application import check_name
from stretto.core.errors import StrettoError

UNLIMITED_MEMORY = 2**62


@dataclass(frozen=True)
class Worker:
    """`resident` names the variants loaded at the start as application/variant; None means all of them."""

    name: str
    kind: str = "default"
    memory_bytes: int = UNLIMITED_MEMORY
    resident: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_name("worker", self.name)
        check_name("worker kind", self.kind)
        if self.memory_bytes <= 0:
            raise StrettoError(f"worker {self.name} has no memory")


def workers(count: int, kind: str = "default", memory_bytes: int = UNLIMITED_MEMORY) -> tuple[Worker, ...]:
    """`count` equal workers, named by number."""
    return tuple(Worker(f"{kind}-{number}", kind, memory_bytes) for number in range(count))
