"""Watches the workers: batches and loads that hang, memory that grows, and models that are not to be trusted.

A worker that hangs is ended. A model that took a worker down a moment ago, or that a worker hangs at, is a suspect.
Where several applications share the workers, a suspect runs on half of them at most and never on the last one that is
free, so that whatever it does, others are served. While there is an application that has answered much, those that have
answered little are on trial: they run on one worker, which plans are told of, and never on the last one either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from stretto.core.conditions import Conditions
from stretto.live.executor import Job, Loss
from stretto.live.members import Member
from stretto.live.quarantine import Fault, label_of

LATENESS = 20  # a batch that takes so many times what was expected, and at least hang_s, hangs
SUSPICION_NS = 250_000_000  # one that takes as many times and so long will hang, and is waited for no longer
LONG_WATCH_NS = 750_000_000  # from one look at the workers to the next, at most
HASTE_NS = 1_000_000_000  # the hang limit where no other worker is left, or none for others that are on trial
PROVEN = 20  # batches that a model must have answered to be trusted with the last worker
ROOM = 1.25  # beyond its limit by this, a worker is not replaced but ended
SHORT_LIFE_NS = 60_000_000_000  # whoever fills a worker's memory within this time took it down
MIB = 1 << 20
SET_ASIDE = "its model is set aside at present, because of what it did"
NEW = "its model has answered little yet, and others need the only worker that is left at this moment"
AT_RISK = "its model took a worker down a moment ago, and others need those that are left"

Clock = Callable[[], int]


class Blames(Protocol):
    """Who hears what models did."""

    def blamed(self, key: str, fault: Fault, reason: str, is_certain: bool) -> None:
        """A model took a worker down, or did not load. `is_certain`: nothing else can have been the cause."""

    def proven(self) -> None:
        """A model has answered much."""


class Watched(Protocol):
    """The crew, as far as it is watched."""

    members: list[Member]

    def is_paused(self, worker: int) -> bool: ...

    def end(self, worker: int, fault: Fault | None, reason: str) -> None: ...

    def replace(self, worker: int, why: str) -> None: ...


class Lookout:
    """The crew's. `memory_bytes` is what a worker's process may hold; 0: anything."""

    def __init__(self, crew: Watched, owner: Blames, clock: Clock, hang_ns: int, load_ns: int, memory_bytes: int):
        self._crew, self._owner, self._clock = crew, owner, clock
        self._hang_ns, self._load_ns, self._memory_bytes = hang_ns, load_ns, memory_bytes
        self.is_shared = False  # several applications are served
        self.set_aside: frozenset[str] = frozenset()  # keys of models that must not run
        self._suspects: frozenset[str] = frozenset()
        self._hanging: frozenset[str] = frozenset()
        self._unproven: frozenset[str] = frozenset()
        self._proven: frozenset[str] = frozenset()  # those that answered PROVEN batches
        self._answered: dict[str, int] = {}  # batches, of those that are not proven
        self.trusted: frozenset[str] = frozenset()  # applications that answered much at another scheduler
        self._trial_worker = 0
        self._watched_ns = clock()
        self.wanted: frozenset[str] = frozenset()  # all of these: models whose batches are looked at first

    def beware(self, set_aside: frozenset[str], suspects: frozenset[str]) -> None:
        """Of these models, from now on."""
        self.set_aside, self._suspects = set_aside, suspects
        self._want()

    def serve(self, keys: frozenset[str], is_shared: bool) -> None:
        """These models are served from now on."""
        self._proven = (self._proven & keys) | {key for key in keys if _application(key) in self.trusted}
        self._unproven, self.is_shared = keys - self._proven, is_shared
        self._answered = {key: count for key, count in self._answered.items() if key in keys}
        self._want()

    def answered(self, key: str) -> None:
        """A model that was wanted ran a batch well."""
        if key in self._unproven:
            self._answered[key] = self._answered.get(key, 0) + 1
            if self._answered[key] >= PROVEN:
                del self._answered[key]
                self._proven |= {key}
                self._unproven -= {key}
                self._want()
                self._owner.proven()

    def _want(self) -> None:
        self.wanted = self.set_aside | self._suspects | self._hanging | self._unproven

    def with_trials(self, conditions: Conditions, numbers: Mapping[str, int]) -> Conditions:
        """And who is on trial now, where; `numbers` are those of applications."""
        names = self.on_trial
        if not names:
            return conditions
        on_trial = tuple(number for name, number in numbers.items() if name in names)
        return replace(conditions, on_trial=on_trial, trial_worker=self.trial_worker)

    @property
    def on_trial(self) -> frozenset[str]:
        """Names of applications that have answered little, while another one has answered much."""
        if not self._proven or not self._unproven or not self.is_shared or len(self._crew.members) < 2:
            return frozenset()
        return frozenset(map(_application, self._unproven)) - frozenset(map(_application, self._proven))

    @property
    def trial_worker(self) -> int:
        """The one that those run on: the same as before, unless it hangs or is gone and two others are free."""
        now_ns, members = self._clock(), self._crew.members
        free = [n for n, member in enumerate(members) if member.is_ready and not self._is_overdue(member, now_ns)]
        if self._trial_worker not in free and len(free) > 1:
            self._trial_worker = free[0]
        return self._trial_worker

    def refusal(self, member: Member, key: str) -> str:
        """Why a batch of this model must not begin there; nothing where it may."""
        if key in self.set_aside:
            return SET_ASIDE
        others = [other for other in self._crew.members if other is not member]
        if not self.is_shared or not others:
            return ""
        now_ns = self._clock()
        is_last = not any(other.is_ready and not self._is_overdue(other, now_ns) for other in others)
        if key not in self._suspects and key not in self._hanging:
            is_needed = any(_application(other) != _application(key) for other in self._proven)
            return NEW if is_last and is_needed else ""
        at_risk = sum(bool(other.jobs) and other.jobs[0].key == key for other in others)
        return AT_RISK if is_last or at_risk >= max(1, len(self._crew.members) // 2) else ""

    def is_large(self, member: Member) -> bool:
        """It held so much memory that the system will have ended it for that."""
        return self._memory_bytes > 0 and member.memory_bytes > self._memory_bytes / 2

    def is_served_elsewhere(self, member: Member, key: str) -> bool:
        """Another worker serves with this model: whoever cannot load it is itself at fault."""
        return any(other.serves_with(key) for other in self._crew.members if other is not member)

    def ends_at_fault(self, worker: int, broken: Mapping[str, str]) -> bool:
        """One that could not load these, where another worker serves with one of them. It is started again."""
        for key, problem in broken.items():
            if self.is_served_elsewhere(self._crew.members[worker], key):
                self._crew.end(worker, None, f"it cannot load {label_of(key)}, which others serve with: {problem}")
                return True
        return False

    def overdue(self) -> list[Member]:
        """Those that will hang."""
        now_ns = self._clock()
        return [member for member in self._crew.members if self._is_overdue(member, now_ns)]

    def _is_overdue(self, member: Member, now_ns: int) -> bool:
        return self._runs_beyond(member, SUSPICION_NS, now_ns)

    @staticmethod
    def _runs_beyond(member: Member, patience_ns: int, now_ns: int) -> bool:
        if not member.jobs or not member.is_ready:
            return False
        job = member.jobs[0]
        return now_ns - member.began_ns > max(patience_ns, LATENESS * (job.expected_ns - job.decided_ns))

    def blame(self, member: Member, jobs: Sequence[Job], reason: str, loss: Loss) -> None:
        """Whoever was at work when it was lost. A process that somebody else killed is nobody's fault, unless it held
        so much memory that it will have been the system; a device that failed is not either, nor a load that only this
        worker fails at.
        """
        loading = member.executor.loading()
        in_turn = [each.key for each in loading if not each.is_beside]
        suspects = in_turn[:1] or [*(each.key for each in loading), *(job.key for job in jobs[:1])]
        fault: Fault | None = Fault.LOAD_CRASHED if loading else Fault.CRASHED
        if member.ended_for is not None:
            fault, reason = member.ended_for
            suspects = suspects if member.culprit is None else [member.culprit]
        elif loss is Loss.DEVICE or (loss is Loss.KILLED and not self.is_large(member)):
            return
        elif loss is Loss.KILLED:
            fault, reason = Fault.MEMORY, f"it held {member.memory_bytes / MIB:.0f} MiB when its process was killed"
        is_certain = bool(loading) and len(suspects) == 1
        for key in dict.fromkeys(suspects):
            is_load = any(each.key == key for each in loading)
            if fault is not None and not (is_load and self.is_served_elsewhere(member, key)):
                self._owner.blamed(key, fault, reason, is_certain)

    # -- called now and then -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        now_ns, members = self._clock(), self._crew.members
        stood_ns = now_ns - self._watched_ns - LONG_WATCH_NS
        self._watched_ns = now_ns
        if stood_ns > 0:  # the whole machine stood still, or this loop did: no worker can be blamed for that time
            for member in members:
                member.began_ns += stood_ns
        overdue = [member for member in members if self._is_overdue(member, now_ns)]
        self._hanging = frozenset(member.jobs[0].key for member in overdue)
        self._want()
        is_any_free = any(member.is_ready and member not in overdue for member in members)
        is_trial_held = len(self.on_trial) > 1 and members[self.trial_worker] in overdue
        is_urgent = self.is_shared and (not is_any_free or is_trial_held)
        patience_ns = min(HASTE_NS, self._hang_ns) if is_urgent else self._hang_ns
        for worker, member in enumerate(members):
            if member.ended_for is None and not self._crew.is_paused(worker):
                self._watch_load(worker, member, now_ns)
                self._watch_job(worker, member, patience_ns, now_ns)
                if member.is_ready and self._memory_bytes:
                    self._watch_memory(worker, member, now_ns)

    def _watch_job(self, worker: int, member: Member, patience_ns: int, now_ns: int) -> None:
        is_loading = any(not each.is_beside for each in member.executor.loading())
        if not is_loading and self._runs_beyond(member, patience_ns, now_ns):
            self._crew.end(worker, Fault.HUNG, f"a batch ran for {(now_ns - member.began_ns) / 1e9:.1f} s")

    def _watch_load(self, worker: int, member: Member, now_ns: int) -> None:
        first = next(iter(member.executor.loading()), None)
        if first is None:
            member.loading = None
            if member.executor.is_awaited:
                member.started_ns = now_ns
            if not member.is_ready and not member.coming and now_ns - member.started_ns > self._load_ns:
                self._crew.end(worker, Fault.LOAD_HUNG, "it did not start")  # nothing was loaded: nobody is to blame
        elif member.loading is None or member.loading[0] != first:
            member.loading = first, now_ns
        elif now_ns - member.loading[1] > self._load_ns:
            reason = f"it did not load within {self._load_ns / 1e9:.0f} s"
            if member.is_ready and first.is_beside:  # its batches go on; what hangs there goes when it is replaced
                member.held -= member.coming  # nothing of what came with it is told of any more
                member.coming.clear()
                if not self.is_served_elsewhere(member, first.key):
                    self._owner.blamed(first.key, Fault.LOAD_HUNG, reason, True)
                self._crew.replace(worker, f"{label_of(first.key)} hangs in it")
            else:
                self._crew.end(worker, Fault.LOAD_HUNG, reason)

    def _watch_memory(self, worker: int, member: Member, now_ns: int) -> None:
        member.look_at_memory()
        limit = max(self._memory_bytes, round(ROOM * member.resting_bytes) + 64 * MIB)  # what it needs, it may have
        if member.memory_bytes <= limit:
            return
        reason = f"its process holds {member.memory_bytes / MIB:.0f} MiB, more than {limit / MIB:.0f}"
        if member.memory_bytes > ROOM * limit:
            member.culprit = member.grown_by()
            self._crew.end(worker, Fault.MEMORY, reason)
        elif member.successor is None and now_ns >= member.no_successor_before_ns:
            culprit = member.grown_by()
            if culprit is not None and now_ns - member.ready_ns < SHORT_LIFE_NS:
                self._owner.blamed(culprit, Fault.MEMORY, reason, False)
            self._crew.replace(worker, reason)


def _application(key: str) -> str:
    return key.partition("/")[0]
