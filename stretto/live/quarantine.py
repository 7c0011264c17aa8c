"""Models that are not served because of what they did: the reason, and when each is tried again.

A model that cannot be loaded is set aside at once; one that takes a worker down while it runs, after its second loss,
because the first may have been anybody's; one that fails on batches, after several (conduct.py). Each time that it is
set aside the pause before it is tried again doubles. Times come in as arguments; keys are those of models, so that
another file is another model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

NS = 1_000_000_000
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3600.0
LOSSES = 2  # workers that a model may take down before it is set aside
SUSPECT_S = 60.0  # after a loss
HEALTHY_S = 600.0  # a loss so long ago is forgotten, and so is that the model was set aside


class Fault(StrEnum):
    """What a model did."""

    LOAD_FAILED = "load_failed"
    LOAD_CRASHED = "load_crashed"
    LOAD_HUNG = "load_hung"
    CRASHED = "crashed"
    HUNG = "hung"
    MEMORY = "memory"
    RAISED = "raised"  # or answered what cannot be an answer


@dataclass(frozen=True)
class Entry:
    """A model that is set aside."""

    fault: Fault
    reason: str  # in words for an operator
    until_ns: int  # when it is tried again

    def told(self, now_ns: int) -> str:
        """The reason, and when it is tried again."""
        left_s = max(0, self.until_ns - now_ns) / NS
        return f"{self.reason}; it is tried again in {left_s:.0f} s, or when it is loaded on demand"


@dataclass
class _Record:
    """What is remembered of a model that did something wrong, also while it is served again."""

    losses: int = 0
    times: int = 0  # that it was set aside
    last_ns: int = 0


class Quarantine:
    """By key. `losses` and `times` count over the server's life, by APPLICATION/VARIANT, for metrics."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.losses: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        self._records: dict[str, _Record] = {}

    def lost(self, now_ns: int, key: str, fault: Fault, reason: str) -> bool:
        """It took a worker down; true where it is set aside for that."""
        if key in self.entries:
            return False
        self.losses[label_of(key)] += 1
        record = self._record(now_ns, key)
        record.losses += 1
        record.last_ns = now_ns
        if record.losses < LOSSES:
            return False
        self.put(now_ns, key, fault, f"it took down {record.losses} workers in a row; last: {reason}")
        return True

    def put(self, now_ns: int, key: str, fault: Fault, reason: str) -> Entry:
        """Set it aside, from now on."""
        record = self._record(now_ns, key)
        pause_s = min(FIRST_PAUSE_S * 2**record.times, LONGEST_PAUSE_S)
        record.times = min(record.times + 1, 30)
        record.last_ns = now_ns
        self.times[label_of(key)] += 1
        self.entries[key] = entry = Entry(fault, reason, now_ns + round(pause_s * NS))
        return entry

    def suspects(self, now_ns: int) -> frozenset[str]:
        """Those that took a worker down lately, or were set aside until lately."""
        since_ns = now_ns - round(SUSPECT_S * NS)
        return frozenset(key for key, record in self._records.items() if record.losses and record.last_ns > since_ns)

    def due(self, now_ns: int) -> list[str]:
        """Those whose pause is over."""
        return [key for key, entry in self.entries.items() if entry.until_ns <= now_ns]

    def release(self, now_ns: int, key: str) -> None:
        """It passed a trial and is served again; the next loss sets it aside anew."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            record = self._record(now_ns, key)
            record.last_ns = now_ns
            if entry.fault is not Fault.RAISED:  # which is no danger to workers
                record.losses = LOSSES - 1

    def forget(self, known: set[str]) -> None:
        """All but these: the repository does not hold the others any more."""
        self.entries = {key: entry for key, entry in self.entries.items() if key in known}
        self._records = {key: record for key, record in self._records.items() if key in known}

    def _record(self, now_ns: int, key: str) -> _Record:
        record = self._records.get(key)
        is_old = record is not None and key not in self.entries and now_ns - record.last_ns > HEALTHY_S * NS
        if record is None or is_old:
            self._records[key] = record = _Record()
        return record


def label_of(key: str) -> str:
    """APPLICATION/VARIANT."""
    return key.partition("@")[0]
