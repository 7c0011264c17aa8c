"""Keeps what is served in line with what may be: without models that did something wrong, with those that passed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from stretto.live.admission import GRACE_S, Admission
from stretto.live.generation import Served
from stretto.live.offer import NothingToServe
from stretto.live.quarantine import Fault, label_of
from stretto.live.running import Running
from stretto.live.state import State
from stretto.repository.repository import Repository

FIRST_GRACE_S = 2.0  # all of them together, once an application could be served whole
TRY_AGAIN_S = 1.0  # how often models that are set aside are looked at


class Repairs:
    """The service's: on the loop's thread. `take_up` serves what may be served by now; false where that failed."""

    def __init__(self, service: Running, admission: Admission, take_up: Callable[[], Awaitable[bool]]):
        self._service, self._admission, self._take_up = service, admission, take_up
        self._task: asyncio.Task[None] | None = None
        self._is_due = False
        self._has_failed = False  # to serve what may be, the last time

    async def enlist(self, repository: Repository) -> None:
        """What of it nobody knows yet is tried from now on."""
        everything = await asyncio.to_thread(self._service.offer.everything, repository)
        self._admission.enlist(everything)
        self._admission.keep(everything)

    async def first_ready(self, repository: Repository) -> Served:
        """What is served first: all that is known to be sound, and what is found to be within a moment. A model that
        takes longer to try keeps nobody waiting; it is served when it has passed. However many there are to try, an
        application of which all are known waits for the others a moment only.
        """
        offer, admission = self._service.offer, self._admission
        await self.enlist(repository)
        while True:
            await admission.quiet(GRACE_S, until=admission.has_whole)
            if admission.has_whole():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(admission.quiet(GRACE_S), FIRST_GRACE_S)
            try:
                return await asyncio.to_thread(offer.served, repository)
            except NothingToServe:
                if not admission.is_trying:
                    entries = offer.quarantine.entries.items()
                    reasons = "; ".join(f"{label_of(key)}: {entry.reason}" for key, entry in entries)
                    raise NothingToServe(f"nothing can be served: {reasons[:2000]}") from None

    def found_broken(self, broken: dict[str, str]) -> bool:
        """A worker could not load a model: serve without that variant; true where that is on its way."""
        self.set_aside({key: why for key, why in broken.items() if key not in self._service.offer.quarantine.entries})
        return self._task is not None and not self._task.done()

    def set_aside(self, broken: dict[str, str]) -> None:
        for key, why in broken.items():
            self._admission.set_aside(key, Fault.LOAD_FAILED, why)
        if broken:
            self.look()

    def blamed(self, key: str, fault: Fault, reason: str, is_certain: bool) -> None:
        """A model took a worker down. At its load, it is set aside at once; while it ran, after the second time. One
        that failed on too many batches is certain too.
        """
        if key in self._service.offer.quarantine.entries:
            return
        if is_certain:
            self._admission.set_aside(key, fault, reason)
            self.look()
        elif self._admission.lost(key, fault, reason):
            self.look()
        else:
            self._beware()

    def doubted(self, key: str) -> None:
        """A model failed, and no other variant could show whose fault that was: it is tried while it serves."""
        if key not in self._service.offer.quarantine.entries:
            self._admission.try_again((key,))

    def _beware(self) -> None:
        quarantine = self._service.offer.quarantine
        suspects = quarantine.suspects(self._service.engine.clock())
        self._service.engine.crew.lookout.beware(frozenset(quarantine.entries), suspects)

    def look(self) -> None:
        """Other models than before may be served: no batch of those set aside begins from here on, and a generation of
        those that may be follows.
        """
        service = self._service
        if service.state is not State.SERVING:
            return
        self._beware()
        self._is_due = True
        if self._task is None or self._task.done():
            self._task = service.spawn(self._repair())

    async def _repair(self) -> None:
        service = self._service
        while self._is_due:
            self._is_due = False
            if service.engine.generation.served.keys != self._admission.wanted():
                self._has_failed = not await self._take_up()
            else:
                self._has_failed = False
                service.engine.succession.join_ready()

    async def try_again(self) -> None:
        """Models that are set aside are tried again when their pause is over; and so is a change that failed."""
        while True:
            await asyncio.sleep(TRY_AGAIN_S)
            self._admission.try_due()
            self._beware()
            if self._has_failed:
                self.look()
