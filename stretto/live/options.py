"""How a repository is served: what `stretto serve` and its configuration file say. Loads nothing that serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto.backends.resident import total_bytes
from stretto.core.errors import StrettoError
from stretto.core.partition import Share
from stretto.core.profile import Quantile
from stretto.core.verdict import GivenValue
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.live.fleet import WorkerSpec, read_worker
from stretto.live.scaling_options import LOCAL, ScalingOptions
from stretto.planners.registry import DEFAULT_PLANNER, planner_entry

EXECUTORS = ("thread", "process")
WORKERS_SHARE = 0.6  # of the machine's memory, for all worker processes together


@dataclass(frozen=True)
class ServiceOptions:
    """How a repository is served. `worker` lists unequal workers; without it, there are `workers` equal ones on
    `device` (0: one for each core but one, which is left for the sockets; one for each GPU).
    """

    repository: str
    workers: int = 0
    worker: tuple[str, ...] = ()
    executor: str | None = None  # None: a process each where one is on a GPU, else a thread each
    threads: int = 1
    device: str = "cpu"
    kind: str | None = None
    quantile: Quantile = Quantile.MEAN
    worker_memory_bytes: int = UNLIMITED_MEMORY
    planner: str = DEFAULT_PLANNER
    planner_options: Mapping[str, GivenValue] = field(default_factory=dict)
    data_aware: bool = False  # accuracies by class for a planner that does not look at evidence itself
    policies: Path | None = None  # a file of stretto plan --out, for a planner that follows policies
    plans: Path | None = None  # a file of stretto tune, for a planner that follows verdicts
    is_fresh: bool = False  # what earlier runs learned is neither read nor added to
    judges: bool = True  # else plans that are known are followed, and none is judged here
    only: tuple[str, ...] = ()  # variants to serve, as NAME or APPLICATION/NAME; none: all
    share: Share | None = None  # of a partition over several schedulers; else all of the repository
    replan_s: float | None = None  # how often the planner is asked; None: as often as it is made for
    hang_s: float = 10.0
    load_s: float = 60.0  # a model that takes longer to load hangs
    worker_rss_bytes: int | None = None  # a worker process that holds more is replaced; None: its share of the machine
    ready_all: bool = False  # ready only while every application is; else as soon as what can be served is
    tells_failures: bool = False  # clients hear what a model raised
    reload_s: float = 2.0  # how often the repository is looked at; 0: only when told
    correction: float = 0.02
    autoscale: ScalingOptions | None = None  # else the fleet stays as it is told

    def __post_init__(self) -> None:
        if self.executor is not None and self.executor not in EXECUTORS:
            raise StrettoError(f"there is no executor {self.executor[:40]!r}; there are {', '.join(EXECUTORS)}")
        if not self.hang_s > 0 or not self.reload_s >= 0:
            raise StrettoError("hang_s must be above 0, and reload_s must not be negative")
        if not self.load_s > 0 or (self.worker_rss_bytes is not None and self.worker_rss_bytes < 0):
            raise StrettoError("load_s must be above 0, and worker_rss_bytes must not be negative")
        if self.worker and self.workers:
            raise StrettoError("give either workers, a number, or worker, a list; not both")
        if self.plans is not None and not self.is_judged:
            raise StrettoError(f"planner {self.planner} follows no judged plans; leave the file out, or take judged")
        if self.autoscale is not None and self.autoscale.follows_judge and not self.is_judged:
            raise StrettoError(f"planner {self.planner} has no judge to follow; take judged, or scale by the signals")
        if self.autoscale is not None and self.autoscale.follows_judge and not self.judges:
            raise StrettoError(
                "a fleet that follows the judge needs one; leave --no-judging out, or scale by the signals"
            )
        self.fleet()  # refused here where it cannot be

    @property
    def is_judged(self) -> bool:
        """Whether its planner serves what a judge chose."""
        return "judge" in planner_entry(self.planner).ports

    def fleet(self) -> tuple[WorkerSpec, ...]:
        """The workers as they are told."""
        memory_bytes = self.worker_memory_bytes
        if self.worker:
            return tuple(read_worker(text, memory_bytes) for text in self.worker)
        spec = WorkerSpec(self.device, self.workers, self.threads, self.kind, memory_bytes)
        return spec.on_each_gpu() if self.device == "cuda" and not self.workers else (spec,)

    @property
    def executor_kind(self) -> str:
        """As it was told; else processes where one is on a GPU, which takes its process with it when it fails."""
        return self.executor or ("process" if any(spec.is_gpu for spec in self.fleet()) else "thread")

    @property
    def process_bytes(self) -> int:
        """What one worker's process may hold; 0 where that is not known."""
        if self.worker_rss_bytes is not None:
            return self.worker_rss_bytes
        may_come = 0
        if self.autoscale is not None and self.autoscale.actuator == LOCAL:
            may_come = sum(bounds.most for _, bounds in self.autoscale.bounds)
        return round(WORKERS_SHARE * total_bytes() / max(self.worker_count, may_come))

    @property
    def worker_count(self) -> int:
        return sum(spec.workers for spec in self.fleet())
