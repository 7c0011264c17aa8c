"""What a front end serves clients from: the repository as it reads it itself, and the scheduler behind its link.

To the data plane it is what the service is on a server of one process. Management is the scheduler's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stretto.core.client import Clients
from stretto.core.errors import StrettoError
from stretto.live.face.desk import tensors_digest
from stretto.live.face.front import Directory, FrontEngine, Store
from stretto.live.face.routed import Routed
from stretto.live.options import ServiceOptions
from stretto.live.quarantine import Quarantine
from stretto.live.state import State
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.live")

WATCH_S = 0.25
READ_S = 1.0
STATES = {state.value: state for state in State}


class KnownFiles:
    """What the repository holds, whether it is served or not. Models that are set aside are the scheduler's to know."""

    def __init__(self, known: Mapping[str, ApplicationFiles]) -> None:
        self.known = known
        self.quarantine = Quarantine()


class FrontService:
    """Every call is on the event loop's thread."""

    def __init__(self, options: ServiceOptions, repository: Repository, *stores: Store):
        """One store for each scheduler."""
        self.options = options
        self.clients = Clients()
        known = {files.name: files for files in repository.applications}
        self.offer = KnownFiles(known)
        self.files: dict[str, ApplicationFiles] = {}  # of what is served
        self.engines = tuple(FrontEngine(known, store, self.clients) for store in stores)
        self.engine: FrontEngine | Routed = self.engines[0] if len(stores) == 1 else Routed(self.engines)
        self.engine.on_directory = self._directed
        self._reading: asyncio.Task[None] | None = None
        self._is_leaving = False
        self.state = State.STARTING  # until a scheduler has said what it serves, and after its link is lost
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.engine.lag.start()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def drain(self, limit_s: float) -> bool:
        """Take nothing new; true when everything that was taken had its end at the limit."""
        self._is_leaving, self.state = True, State.DRAINING
        end = self.engine.loop.time() + limit_s
        while self.engine.waiting and self.engine.loop.time() < end:
            await asyncio.sleep(0.01)
        return not self.engine.waiting

    def stop(self) -> None:
        self.engine.lag.stop()
        for task in (self._task, self._reading):
            if task is not None:
                task.cancel()

    def is_ready(self, application: str | None = None, variant: str = "") -> bool:
        """KeyError for a name that the repository does not hold."""
        directory = self.engine.directory
        if application is None:
            return self.engine.is_linked and directory.is_ready and not self._is_leaving
        files = self.offer.known[application]
        if variant and all(each.name != variant for each in files.variants):
            raise KeyError(variant)
        variants, is_ready = directory.served.get(application, ((), False))
        return is_ready and (not variant or variant in variants)

    def heard_from(self, client: int, application: str, shape: tuple[int, ...], sent_bytes: int, **said: Any) -> bool:
        """It goes to the scheduler with the request; whether that is beyond the client's share is known there."""
        self.engine.said = {"client": self.clients.identity_of(client), "sent_bytes": sent_bytes} | {
            what: value for what, value in said.items() if value is not None
        }
        return True

    def _directed(self, directory: Directory) -> None:
        """What is served has changed, or how much of it is ready."""
        self.engine.crew.ready_count = directory.workers
        if not self._is_leaving:
            self.state = STATES.get(directory.state, State.STARTING)
        self._serve(directory)
        is_reading = self._reading is not None and not self._reading.done()
        if self._has_all_of(directory):
            self.engine.known(directory.edition)
        elif not is_reading:
            self._reading = asyncio.get_running_loop().create_task(self._read_anew())

    def _serve(self, directory: Directory) -> None:
        """What the scheduler serves and this front end has read in the same form; with the variants that are served.
        What did not change stays the same object.
        """
        known, before, self.files = self.offer.known, self.files, {}
        for name, (variants, _) in directory.served.items():
            if name in known and tensors_digest(known[name]) == directory.tensors[name]:
                chosen = tuple(variant for variant in known[name].variants if variant.name in variants)
                files = replace(known[name], variants=chosen)
                self.files[name] = before[name] if before.get(name) == files else files

    def _has_all_of(self, directory: Directory) -> bool:
        """Every application that is served, with every variant that is."""
        return all(
            name in self.files and len(self.files[name].variants) == len(variants)
            for name, (variants, _) in directory.served.items()
        )

    async def _read_anew(self) -> None:
        """Something is served that is new here, or its tensors are not what they were."""
        while True:
            try:
                before = tuple(self.offer.known.values())
                repository = await asyncio.to_thread(read_repository, self.options.repository, before=before)
            except (StrettoError, OSError) as error:
                log.error("the repository changed and cannot be read here: %s", error)
            else:
                self.offer.known = self.engine.files = {files.name: files for files in repository.applications}
                self._serve(self.engine.directory)
                if self._has_all_of(self.engine.directory):
                    self.engine.known(self.engine.directory.edition)
                    return
            await asyncio.sleep(READ_S)  # it may be half written

    async def _watch(self) -> None:
        """Clients that asked nothing for long are forgotten."""
        while True:
            await asyncio.sleep(WATCH_S)
            self.clients.forget_gone(self.engine.clock())
