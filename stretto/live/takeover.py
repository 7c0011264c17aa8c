"""Serve a new deployment in the place of the one before: its evidence is loaded, its plan made, then the engine moves
over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stretto.core.conditions import Conditions
from stretto.core.deployment import with_evidence
from stretto.core.evidence import Said
from stretto.live.beginning import beginning_as_planned
from stretto.live.generation import Served
from stretto.live.judging import Judging
from stretto.live.policies import PolicyMaker
from stretto.live.running import Running
from stretto.live.witness import Witness
from stretto.planning.readings import view_after_change
from stretto.planning.session import InForce, Session
from stretto.repository.application import ApplicationFiles

if TYPE_CHECKING:
    from stretto.evidence.model import Evidence


@dataclass(frozen=True)
class Loaded:
    """Evidence by application, and what it says of labelled samples."""

    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    said: Mapping[str, Said] = field(default_factory=dict)


class Takeover:
    """The service's: on the loop's thread."""

    def __init__(self, service: Running, session: Session, maker: PolicyMaker, judging: Judging | None):
        self._service, self._session, self._maker, self._judging = service, session, maker, judging

    async def load_evidence(self, ready: Served) -> tuple[Loaded, Served]:
        """The evidence of what will be served, and that with the accuracies that evidence gives it. An application that
        has none is told of, and served without.
        """
        if not self._session.uses_evidence(ready.deployment):
            return Loaded(), ready
        evidence = await asyncio.to_thread(_loaded_evidence, ready.files)
        said = await asyncio.to_thread(_said_of_samples, ready.files, evidence)
        deployment = with_evidence(ready.deployment, {name: samples.theta for name, samples in said.items()})
        return Loaded(evidence, said), replace(ready, deployment=deployment)

    def use_evidence(self, loaded: Loaded) -> None:
        """From now on."""
        engine = self._service.engine
        if engine.witness is None and not loaded.evidence:
            return
        if engine.witness is None:
            engine.witness = Witness(engine.loop, engine.classified)
        engine.witness.use(loaded.evidence)
        if self._judging is not None:
            self._judging.twin.knows(loaded.said)

    def forget_evidence(self) -> None:
        """From now on there is none."""
        self.use_evidence(Loaded())

    async def move_over(self, ready: Served) -> None:
        """Its models are held already."""
        service = self._service
        evidence, ready = await self.load_evidence(ready)
        self.use_evidence(evidence)
        async with service.replanner.turn:
            self._maker.forget()
            ready, in_force = beginning_as_planned(ready, await self._planned(ready))
            service.engine.succession.replace(ready, in_force)
            service.files = {files.name: files for files in ready.files}
            service.replanner.period_s = self._session.rhythm.period_for(ready.deployment)
            if self._judging is not None:
                self._judging.forget()

    async def _planned(self, ready: Served) -> InForce:
        """The first plan for a new deployment: load and workers do not change because the repository did."""
        engine = self._service.engine
        now_ns, old = engine.clock(), engine.generation
        conditions, telemetry = Conditions(delays=engine.delays.delays), old.dispatcher.telemetry(now_ns)
        view = view_after_change(ready.deployment, old.deployment, telemetry, conditions.delays)
        return await asyncio.to_thread(self._session.first, ready.deployment, now_ns, conditions, view=view)


def _loaded_evidence(files: Sequence[ApplicationFiles]) -> dict[str, Evidence]:
    from stretto.evidence.samples import loaded_evidence  # takes a moment, with backends and Faiss

    return loaded_evidence(files)


def _said_of_samples(files: Sequence[ApplicationFiles], evidence: Mapping[str, Evidence]) -> dict[str, Said]:
    from stretto.evidence.samples import said_of_samples

    return said_of_samples(files, evidence)
