"""The start plans that `stretto profile` leaves beside the models: judged once, for this machine's workers."""

from __future__ import annotations

import math
import multiprocessing
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path

from stretto.cli.output import Progress, part_of
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.core.verdict import Verdict
from stretto.core.worker import Worker
from stretto.core.worker import workers as equal_workers
from stretto.live.children import end_with_parent
from stretto.live.delays import DelayMeter
from stretto.live.fleet import WorkerSpec
from stretto.repository.judged import judged_place
from stretto.repository.read import read_repository
from stretto.twin.library import Library
from stretto.twin.library_file import save_library
from stretto.twin.tune import start_library

MOST_CPU_S = 20.0  # for all applications


class BoundedJudge:
    """Judges in a process of its own, which ends when its processor time is spent."""

    def __init__(self, cpu_s: float) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), partial(_bound, math.ceil(cpu_s)))

    def __call__(self, work: Callable[[], Verdict]) -> Verdict | None:
        try:
            return self._pool.submit(work).result()
        except BrokenProcessPool:
            return None

    def close(self) -> None:
        self._pool.shutdown()


def _bound(cpu_s: int) -> None:
    """In that process, first of all."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def judge_start_plans(
    folders: Sequence[Path], kind: str, device: str, progress: Progress | None = None
) -> dict[str, Library | StrettoError]:
    """By application: what was judged and written, or why nothing was. Profiles are read as they are now."""
    judged: dict[str, Library | StrettoError] = {}
    for number, folder in enumerate(folders):
        repository = read_repository(folder)
        (files,) = repository.applications
        with closing(BoundedJudge(MOST_CPU_S / len(folders))) as judge:
            try:
                deployment, _ = repository.deployment(_usual_workers(kind, device), Quantile.MEAN)
                library = start_library(deployment, DelayMeter().delays, judge, part_of(progress, number, len(folders)))
                _write(judged_place(files, kind).path, library)
                judged[files.name] = library
            except StrettoError as error:
                judged[files.name] = error
    return judged


def _usual_workers(kind: str, device: str) -> tuple[Worker, ...]:
    """As many as a server has that is told of none: one GPU, or one for each core but one."""
    count = WorkerSpec(count=0).workers if device == "cpu" else 1
    return equal_workers(count, kind)


def _write(path: Path, library: Library) -> None:
    if not library.judgements:
        raise StrettoError("there was no time to judge even one load")
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StrettoError(f"they cannot be written ({error.strerror or 'output error'})") from None
    save_library(path, library)
