"""So many workers of a kind on this machine: slots are added, workers are let go, and their slots filled again.

A worker that is let go is planned without first, then given nothing more; it ends when it has finished what it has. No
query is lost with it.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.core.errors import StrettoError
from stretto.live.changes import Changes
from stretto.live.fleet import slot_specs
from stretto.live.running import Running


class LocalSlots:
    """An actuator whose workers are threads or processes of this server."""

    def __init__(self, service: Running, changes: Changes):
        self._service, self._changes = service, changes

    async def scale_to(self, kind: str, count: int) -> None:
        """Returns when the workers that are to come were started; they join when they are ready."""
        slots = self._of_kind(kind)
        if not slots:
            raise StrettoError(f"there is no worker of kind {kind[:80]}; start the server with one of it")
        members = self._service.engine.crew.members
        there = [slot for slot in slots if not members[slot].is_retired]
        if count < len(there):
            await self._let_go(self._least_needed(there, len(there) - count))
            return
        empty = [slot for slot in slots if members[slot].is_retired]
        self._call_back(empty[: count - len(there)])
        more = count - len(there) - len(empty)
        if more > 0:
            first = slot_specs(self._service.offer.fleet)[slots[0]]
            machine = kind if not first.variants else first.kind
            await self._changes.add(replace(first, count=more, kind=machine))

    def _of_kind(self, kind: str) -> list[int]:
        workers = self._service.engine.generation.deployment.workers
        return [slot for slot, worker in enumerate(workers) if worker.kind == kind]

    def _least_needed(self, slots: list[int], count: int) -> list[int]:
        """Those that cannot serve yet, then those that are free, the last ones first."""
        crew = self._service.engine.crew
        return sorted(slots, key=lambda slot: (crew.is_ready(slot), crew.is_busy(slot), -slot))[:count]

    async def _let_go(self, slots: list[int]) -> None:
        engine = self._service.engine
        await self._changes.plan_without(slots)
        for slot in slots:
            if not engine.crew.members[slot].is_retired:
                engine.reports.let_go(slot)
        engine.on_fleet()

    def _call_back(self, slots: list[int]) -> None:
        engine = self._service.engine
        for slot in slots:
            was_at_work = engine.crew.call_back(slot)
            generation = engine.generation
            if was_at_work and all(job.generation is generation for job in engine.crew.members[slot].jobs):
                generation.dispatcher.worker_joined(engine.clock(), slot)
                engine.act(generation)
        if slots:
            engine.on_fleet()
