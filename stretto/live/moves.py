"""A scheduler's share of a partition, and how it changes while it serves (Symphony section 4.7).

What is gained is loaded beside the work, one worker at a time. What is to leave is served on until every front end has
it ready at another scheduler, and says so; then what waits for it ends, and it goes. So schedulers need not know of
each other, in whatever order they hear of a new partition, and where nobody else gets a model ready it stays.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stretto.core.errors import StrettoError
from stretto.core.partition import Partition, Share, partition_text
from stretto.planners.partition import search
from stretto.planners.partition.problem import partition_problem
from stretto.planners.parts.choose import choose_variants
from stretto.repository.repository import Repository

if TYPE_CHECKING:
    from stretto.live.changes import Changes
    from stretto.live.running import Running

log = logging.getLogger("stretto.live")

LOOK_S = 0.05
PAUSE_S = 5.0  # after a change that could not be made
LOADING_AT_ONCE = 1  # workers
NO_FRONT_END = "front ends (none is there)"


class Fronts(Protocol):
    """The front ends of this scheduler: the desk."""

    def look(self) -> None:
        """They are told what is served, and what leaves, as of now."""

    def waited_for(self, application: str) -> list[str]:
        """The front ends that have not said that another scheduler has it ready, since they were told that it leaves;
        by name.
        """


class Moves:
    """The service's: on the loop's thread."""

    def __init__(self, service: Running, changes: Changes, share: Share):
        self._service, self._changes = service, changes
        self.share = share  # in force
        self.leaving: frozenset[str] = frozenset()  # served on until front ends have them elsewhere
        self.problem = ""  # of the last change
        self.fronts: Fronts | None = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def parts(self) -> int:
        """Sub-clusters that its planner makes of its workers: each holds a part of what is served here."""
        return int(self._service.options.planner_options.get("sub_clusters", 1))

    async def take_up(self, partition: Partition) -> None:
        """Returns when what is gained is served; what is lost goes later. StrettoError where this cannot be; then all
        stays as it was.
        """
        async with self._turn:
            before, share = self.share, replace(self.share, partition=partition)
            if partition == before.partition:
                return
            if partition.version <= before.partition.version:
                raise StrettoError(
                    f"version {before.partition.version} of the partition is in force here, and this is "
                    f"{partition.version}; give it a higher one"
                )
            if share.count != before.count:
                raise StrettoError(
                    f"this is {before.where} of {before.count}, and the partition has {share.count}; another number of "
                    "them needs schedulers that are started for it"
                )
            try:
                await self._gain(share)
            except StrettoError as error:
                self.problem = str(error)
                raise
            self.share, self.problem = share, ""
            await asyncio.to_thread(self._write)
            leaving = (self._service.offer.share or frozenset()) - set(share.applications)
            log.info("version %d of the partition: %s", partition.version, self._summary(leaving))
            self._leave(leaving)

    async def _gain(self, share: Share) -> None:
        offer, service = self._service.offer, self._service
        repository = await self._changes.read_anew()
        await asyncio.to_thread(self._check, repository, share)
        before = offer.share or frozenset()
        gained = set(share.applications) - before
        if not gained:
            return
        offer.share = before | gained
        lookout = service.engine.crew.lookout
        lookout.trusted |= gained & self.share.partition.homes.keys()  # they were served until now, if not here
        try:
            await self._changes.load(*sorted(gained), at_once=LOADING_AT_ONCE)
        except BaseException:
            offer.share = before
            lookout.trusted -= gained
            await self._changes.take_up()  # without those of them that can be served
            raise

    def _check(self, repository: Repository, share: Share) -> None:
        """StrettoError, with the model or the limit to blame, where it does not fit into the workers."""
        for name in share.applications:
            repository.application(name)
        deployment = self._service.offer.deployment_of(repository, share.applications)
        chosen = choose_variants(deployment)
        try:
            search.partition(partition_problem(deployment, chosen, self.parts, np.zeros(len(chosen))))
        except StrettoError as error:
            raise StrettoError(f"{share.where}: {error}") from None

    def _leave(self, leaving: frozenset[str]) -> None:
        """These, and no others any more."""
        self.leaving = leaving
        if self.fronts is not None:
            self.fronts.look()
        if leaving and (self._task is None or self._task.done()):
            self._task = self._service.spawn(self._let_go())

    async def _let_go(self) -> None:
        pause_s = LOOK_S
        while self.leaving:
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S
            async with self._turn:
                gone = frozenset(name for name, fronts in self.waiting().items() if not fronts)
                if not gone:
                    continue
                try:
                    await self._changes.let_go(gone)
                except Exception as error:  # also a planner's own; it is tried again
                    self.problem, pause_s = str(error), PAUSE_S
                    log.error("%s could not be let go: %s", ", ".join(sorted(gone)), error)
                    continue
                self.leaving, self.problem = self.leaving - gone, ""
                self._service.engine.crew.lookout.trusted -= gone
                log.info("%s: served by another scheduler from now on", ", ".join(sorted(gone)))

    def waiting(self) -> Mapping[str, list[str]]:
        """By what leaves: the front ends that do not have it elsewhere yet."""
        if self.fronts is None:
            return {name: [NO_FRONT_END] for name in self.leaving}
        served = self._service.files
        return {name: self.fronts.waited_for(name) if name in served else [] for name in self.leaving}

    def _summary(self, leaving: frozenset[str]) -> str:
        served = f"{self.share.where} serves {', '.join(self.share.applications)}"
        return served + (f"; {', '.join(sorted(leaving))} will leave" if leaving else "")

    def _write(self) -> None:
        """For the next start. A file that cannot be written is told of: a start would go back to what it says."""
        file, text = self.share.file, partition_text(self.share.partition)
        if file is None:
            return
        part = Path(f"{file}.{os.getpid()}")
        try:
            if file.read_text("utf-8") == text:
                return
            part.write_text(text, "utf-8")
            part.replace(file)
        except (OSError, UnicodeDecodeError):
            part.unlink(missing_ok=True)
            log.warning("%s cannot be written: put this partition there before the next start", file)
