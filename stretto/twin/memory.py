"""What a server knows of verdicts before it judged any, and what it keeps of its own for the next start.

There are three places: the start plans of the repository (judged by profiles), what earlier runs of the same deployment
learned, and a file that the user gave. Where they tell of the same load, the later one of these goes first. When
applications come or go, what was learned of loads that they have no part in goes with the others, where nothing better
is known; with one that came it is a start, and is judged anew.

A verdict from a file serves as a start. Once the conditions were measured and are like those that it was judged under,
it stands; else the load is judged anew.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stretto.core.compile_cache import user_folder
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.verdict import Verdict
from stretto.planners.candidates import candidates_digest, has_choice, memory_is_short
from stretto.twin.library import Judgement, Library, Scope, rungs_of
from stretto.twin.library_file import load_library, save_library
from stretto.twin.live import Case, are_alike, doubts_of, figures_of

log = logging.getLogger("stretto.twin")

KEPT_FILES = 64  # of deployments, in the user's cache
LEARNED = "measured while serving"


def learned_folder() -> Path:
    """Beside compiled code in the user's cache, which STRETTO_CACHE_DIR moves."""
    return user_folder().parent / "judged"


class VerdictMemory:
    """`given` is a library that the user named, `starts` finds those of the repository; without a `folder` nothing is
    kept. May be called from any thread.
    """

    def __init__(
        self,
        given: Library | None = None,
        starts: Callable[[Deployment], Sequence[Library]] = lambda deployment: (),
        folder: Path | None = None,
    ) -> None:
        self._given, self._starts, self._folder = given, starts, folder
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._deployment: Deployment | None = None
        self._unproved: dict[tuple[int, ...], Judgement] = {}  # judged before this start, by rungs
        self._learned: Library | None = None  # of the deployment, with what is new
        self._is_saved = True

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        """All that is known of a deployment that is served from now on."""
        self.save()
        learned = self._read(deployment)
        with self._lock:
            if self._deployment is not None and self._learned is not None:
                learned = learned.after(_carried(self._learned, self._deployment, deployment))
            self._deployment, self._learned = deployment, learned
            judgements: list[Judgement] = []
            for library in self._starts(deployment):
                judgements += _holding(library, deployment, logging.INFO, partly=True)
            judgements += _holding(learned, deployment, logging.WARNING)
            if self._given is not None:
                judgements += _holding(self._given, deployment, logging.WARNING)
            self._unproved = {rungs_of(judgement.verdict.rates): judgement for judgement in judgements}
            if self._unproved:
                log.info("plans for %d loads were judged before", len(self._unproved))
            return [judgement.verdict for judgement in self._unproved.values()]

    def standing(self, deployment: Deployment, rates: tuple[float, ...], case: Case) -> Verdict | None:
        """A verdict for these rates from before the start that was judged under conditions like those of the case."""
        with self._lock:
            judgement = self._unproved.get(rungs_of(rates)) if deployment is self._deployment else None
            is_whole = len(case.deployment.workers) == len(deployment.workers)
            if judgement is None or not judgement.figures or not is_whole:
                return None
            # Those of a file were measured for as long, as far as is known.
            doubts = {name: math.sqrt(2) * doubt for name, doubt in doubts_of(case.setting).items()}
            if not are_alike(judgement.figures, figures_of(case.setting, deployment), doubts):
                return None
            del self._unproved[rungs_of(rates)]
            return replace(judgement.verdict, rates=rates)

    def keep(self, deployment: Deployment, verdict: Verdict, case: Case) -> None:
        """A verdict of this run; what was judged for a part of the workers is of no use later."""
        with self._lock:
            self._unproved.pop(rungs_of(verdict.rates), None)
            is_whole = len(case.deployment.workers) == len(deployment.workers)
            if deployment is self._deployment and self._learned is not None and is_whole:
                self._learned = self._learned.with_judgement(Judgement(verdict, figures_of(case.setting, deployment)))
                self._is_saved = False

    def forget(self, verdict: Verdict) -> None:
        """Its promise was not kept."""
        with self._lock:
            rungs = rungs_of(verdict.rates)
            self._unproved.pop(rungs, None)
            if self._learned is not None:
                left = tuple(
                    judgement for judgement in self._learned.judgements if rungs_of(judgement.verdict.rates) != rungs
                )
                self._is_saved = self._is_saved and len(left) == len(self._learned.judgements)
                self._learned = replace(self._learned, judgements=left)

    def save(self) -> None:
        """Write what is new; a folder that cannot be written is told of once. Whoever asks for a verdict meanwhile does
        not wait for the disk.
        """
        with self._writing:
            with self._lock:
                learned, is_new = self._learned, not self._is_saved
                self._is_saved = True
            if is_new and learned is not None and self._folder is not None:
                self._write(learned, self._folder)

    def _write(self, learned: Library, folder: Path) -> None:
        try:
            with suppress(OSError):  # then the file cannot be written either, which is told
                folder.mkdir(parents=True, exist_ok=True)
            save_library(folder / learned.name, learned)
            _forget_oldest(folder)
        except StrettoError as error:
            log.warning("what was judged is not kept for the next start: %s", error)
            self._folder = None

    def _read(self, deployment: Deployment) -> Library:
        scope = Scope.of(deployment)
        name = f"{scope.digest()}-{candidates_digest(deployment)}.json"  # judged among others, a verdict says little
        empty = Library(scope, (), LEARNED, name)
        if self._folder is None or not (self._folder / name).is_file():
            return empty
        try:
            library = load_library(self._folder / name)
            judgements = library.judgements_for(deployment)  # in its order; refused where the file's name lies
            return replace(library, scope=scope, judgements=judgements)
        except StrettoError as error:
            log.warning("what earlier runs learned is left aside, and judged anew: %s", error)
            return empty


def _holding(library: Library, deployment: Deployment, level: int, *, partly: bool = False) -> Sequence[Judgement]:
    """Those that hold here; where none does, the log says why."""
    try:
        return library.judgements_for(deployment, partly=partly)
    except StrettoError as error:
        log.log(level, "%s", error)
        return ()


def _carried(before: Library, was: Deployment, deployment: Deployment) -> Sequence[Judgement]:
    """What was learned of the deployment that was served before, on the same workers: an application that comes or goes
    changes little for the others while nobody calls it. Where workers cannot hold all variants it does; and what was
    judged where no application had a choice of variants was judged among others.
    """
    if before.scope.workers != Scope.of(deployment).workers or memory_is_short(was) or memory_is_short(deployment):
        return ()
    if has_choice(was) != has_choice(deployment):
        return ()
    left = before.left_with({application.name for application in deployment.applications})
    return _holding(left, deployment, logging.DEBUG, partly=True)


def _forget_oldest(folder: Path) -> None:
    with suppress(OSError):
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT_FILES]:
            file.unlink(missing_ok=True)
