"""Which models may be served: those that passed their probation and did nothing wrong since.

A model that is new here is on probation; one that failed there, or took workers down, is set aside, and tried again
after a pause that grows, or when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from stretto.backends.model import Array
from stretto.core.errors import StrettoError
from stretto.live.generation import Served
from stretto.live.lookout import Clock
from stretto.live.offer import Offer
from stretto.live.probation import RUNS, Probation, Verdict
from stretto.live.quarantine import Entry, Fault, Quarantine, label_of
from stretto.live.remembered import Remembered
from stretto.live.shelf import ModelSpec
from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.live")

MIB = 1 << 20
GRACE_S = 3.0  # trials that end one after the other are waited for; one that takes longer is not


class Admission:
    """On the loop's thread. `on_change` is called when a model may be served that might not before."""

    def __init__(
        self,
        offer: Offer,
        probation: Probation,
        remembered: Remembered,
        clock: Clock,
        on_change: Callable[[], None],
    ):
        self._offer, self._probation, self._remembered = offer, probation, remembered
        self._clock, self._on_change = clock, on_change
        self._specs: dict[str, tuple[ModelSpec, ...]] = {}  # by key, as each kind of worker loads it
        self._files: dict[str, ApplicationFiles] = {}  # by application
        self._trials: dict[str, asyncio.Task[None]] = {}
        self._current: set[str] = set()  # keys of the repository that is served
        self._heard = asyncio.Event()  # a trial ended

    @property
    def quarantine(self) -> Quarantine:
        return self._offer.quarantine

    def enlist(self, everything: Served) -> None:
        """Models of a repository; those that nobody knows are tried."""
        self._files = {files.name: files for files in everything.files}
        slots = everything.by_slot or (everything.specs,)
        for number, first in enumerate(everything.specs):
            key = first.key
            self._specs[key] = specs = tuple(dict.fromkeys(slot[number] for slot in slots))
            if key in self._offer.passed or key in self.quarantine.entries or key in self._trials:
                continue
            if all(map(self._remembered.has, specs)):
                self._offer.passed.add(key)
            else:
                self._try(key)

    def keep(self, everything: Served, serving: Collection[str] = ()) -> None:
        """This is the repository to be served from now on: what it does not hold is forgotten. But not models that are
        `serving` until it is: they may still be served, and on, where there is no plan for the new ones.
        """
        self._current = {spec.key for spec in everything.specs}
        known = self._current.union(self._trials, serving)
        self._specs = {key: specs for key, specs in self._specs.items() if key in known}
        self._offer.passed &= known
        self.quarantine.forget(known)

    def wanted(self) -> set[str]:
        """Keys of what is to be served by now."""
        unloaded = self._offer.unloaded
        return {key for key in self._current if key.partition("/")[0] not in unloaded and self._offer.may_serve(key)}

    def try_again(self, keys: Iterable[str]) -> None:
        """These are set aside; whatever is left of their pause, they are tried now."""
        for key in keys:
            if key in self._specs and key not in self._trials:
                self._try(key)

    def try_due(self) -> None:
        self.try_again(self.quarantine.due(self._clock()))

    def set_aside(self, key: str, fault: Fault, reason: str) -> None:
        """It must not be served for now."""
        self._told(key, self.quarantine.put(self._clock(), key, fault, reason))

    def lost(self, key: str, fault: Fault, reason: str) -> bool:
        """It took a worker down; true where it is set aside for that."""
        now_ns = self._clock()
        if not self.quarantine.lost(now_ns, key, fault, reason):
            return False
        self._told(key, self.quarantine.entries[key])
        return True

    async def quiet(self, patience_s: float, until: Callable[[], bool] = lambda: False) -> None:
        """Until every trial has ended, or none has for so long, or this is so after one of them."""
        while self._trials and not until():
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), patience_s)
            except TimeoutError:
                return

    async def settled(self, keys: Iterable[str]) -> None:
        """Until the trials of these have ended."""
        trials = [self._trials[key] for key in keys if key in self._trials]
        if trials:
            await asyncio.wait(trials)

    def has_whole(self) -> bool:
        """There is an application none of whose models is still to be tried, and that can be served."""
        trying = {key.partition("/")[0] for key in self._trials}
        return any(key.partition("/")[0] not in trying for key in self.wanted())

    def keys_of(self, application: str) -> list[str]:
        return [key for key in self._specs if key.startswith(f"{application}/")]

    @property
    def trials(self) -> Collection[str]:
        """Keys of the models that are tried now."""
        return self._trials.keys()

    @property
    def is_trying(self) -> bool:
        return bool(self._trials)

    def close(self) -> None:
        for trial in self._trials.values():
            trial.cancel()
        self._probation.close()

    def _try(self, key: str) -> None:
        self._trials[key] = asyncio.get_running_loop().create_task(self._trial(key, self._specs[key]))

    async def _trial(self, key: str, specs: tuple[ModelSpec, ...]) -> None:
        """A new model must pass on every device of the fleet. One that once did need pass on one of them: it is not its
        fault if another cannot load it any more.
        """
        was_sound = key in self._offer.passed
        files = self._files.get(key.partition("/")[0])
        sample = None if files is None else await asyncio.to_thread(_sample_of, files, specs[0])
        verdicts: list[Verdict] = []
        for spec in specs:
            verdicts.append(await self._probation.verdict(spec, sample, RUNS if was_sound else 1))
            if verdicts[-1].fault is not None and not was_sound:
                break
        self._trials.pop(key, None)
        faults = [(verdict.fault, verdict.reason) for verdict in verdicts if verdict.fault is not None]
        is_sound_somewhere = any(verdict.fault is None and verdict.was_tried for verdict in verdicts)
        if faults and not (was_sound and is_sound_somewhere):
            self.set_aside(key, *faults[0])
        else:
            for spec, verdict in zip(specs, verdicts, strict=True):
                self._tell_trial(spec, verdict)
            self.quarantine.release(self._clock(), key)
            self._offer.passed.add(key)
        self._heard.set()
        self._on_change()

    def _tell_trial(self, spec: ModelSpec, verdict: Verdict) -> None:
        """Of a model that is served."""
        model, device = label_of(spec.key), spec.source.device
        if verdict.fault is not None:
            log.error("%s is served without the workers on %s, who cannot load it: %s", model, device, verdict.reason)
        elif verdict.was_tried:
            self._remembered.add(spec)
            log.info("%s passed its probation on %s (%.0f MiB)", model, device, verdict.memory_bytes / MIB)

    def _told(self, key: str, entry: Entry) -> None:
        log.error("%s is left out: %s", label_of(key), entry.told(self._clock()))
        for spec in self._specs.get(key, ()):
            self._remembered.discard(spec)


def _sample_of(files: ApplicationFiles, spec: ModelSpec) -> Array | None:
    """A few queries as clients send them; None where the application has none that can be read."""
    if files.sample_file is None:
        return None
    try:
        inputs = files.sample().inputs[:RUNS]
    except (StrettoError, OSError) as error:
        log.warning("the models of %s are tried on zeros, for its sample cannot be read: %s", files.name, error)
        return None
    return inputs.copy() if inputs.shape[1:] in spec.shapes else None
