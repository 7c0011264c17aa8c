"""Which answers were right: clients send the true labels later, and how many agree stands beside the accuracy that was
promised.

Only answers to requests that had an `id` are remembered, and of those the last: a request without one costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.api.errors import bad_request
from stretto.api.messages import Array

if TYPE_CHECKING:
    from stretto.live.requests import Request
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.tensors import OutputTensor

KEPT = 10_000  # answers
KEPT_BYTES = 8_000_000
ENTRY_BYTES = 400  # of each, besides its id and its numbers
MOST_NUMBERS = 65_536  # of an answer: to look for the largest of more would hold up others
MOST_ENTRIES = 1000  # of one call
BODY_BYTES = 262_144
SEVERAL = "several"  # stands where the variant's name would: the rows of one request were answered by more than one


@dataclass(slots=True)
class Answered:
    """`said` has a class or values for each row, the classes as a list: a call has many labels, each by itself. None
    since it was labelled. `expected`: how many rows are right, by the accuracy that the answer stated; below 0 where
    that is not known.
    """

    variant: str
    said: list[int] | Array | None
    rows: int
    numbers: int
    expected: float
    size: int
    said_bytes: int


@dataclass(slots=True)
class Agreement:
    """Of labelled queries."""

    right: int = 0
    wrong: int = 0
    expected: float = 0.0


class Feedback:
    """On the event loop's thread."""

    def __init__(self, kept: int = KEPT, kept_bytes: int = KEPT_BYTES):
        self.agreements: dict[tuple[str, str], Agreement] = {}  # by application and variant
        self.refused: dict[str, int] = {"unknown": 0, "repeated": 0}  # labels that count for nothing
        self._kept, self._kept_bytes = kept, kept_bytes
        self._answers: dict[tuple[str, str], Answered] = {}  # by application and id, the oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, identity: str, entered: Request, gives: OutputTensor) -> None:
        """Remember what was answered, in the place of an earlier answer with the same id."""
        answers = entered.answers
        if answers is None or not gives.can_be_right or answers.size > MOST_NUMBERS:
            return
        said: list[int] | Array
        if gives.kind.has_classes:
            said = answers.argmax(axis=-1).ravel().tolist()
            numbers, said_bytes = len(said), 8 * len(said)
        else:
            said = np.array(answers)
            numbers, said_bytes = said.size, said.nbytes
        variant = entered.variants[0] if len(entered.variants) == 1 else SEVERAL
        key = entered.application, identity
        self._forget(key)
        size = ENTRY_BYTES + 4 * len(identity) + said_bytes
        self._answers[key] = Answered(variant, said, len(answers), numbers, entered.accuracy_sum, size, said_bytes)
        self._bytes += size
        while len(self._answers) > self._kept or self._bytes > self._kept_bytes:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._answers.pop(key, None)
        if known is not None:
            self._bytes -= known.size

    def take(self, files: ApplicationFiles, content: dict[str, Any]) -> dict[str, int]:
        """Count labels, and say what became of them. ApiError where one makes no sense; then none counts."""
        gives = files.output
        if not gives.can_be_right:
            raise bad_request(f"nobody said when an answer of {files.name} is right: it has values and no tolerance")
        entries = content.get("feedback")
        if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_ENTRIES:
            raise bad_request(f'write {{"feedback": [{{"id": …, "label": …}}, …]}}, with 1 to {MOST_ENTRIES} entries')
        labelled = [self._checked(files, number, entry) for number, entry in enumerate(entries)]
        counts = {"right": 0, "wrong": 0, "unknown": 0, "repeated": 0}
        for key, label in labelled:
            known = self._known(key, files)
            if known is None or known.said is None:
                reason = "unknown" if known is None else "repeated"
                self.refused[reason] += 1
                counts[reason] += 1
                continue
            right, wrong = self._count(files.name, known, label, gives)
            counts["right"] += right
            counts["wrong"] += wrong
        return counts

    def _checked(self, files: ApplicationFiles, number: int, entry: Any) -> tuple[tuple[str, str], list[int] | Array]:
        """The answer that is meant, and its label."""
        identity = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(identity, str) or not identity or "label" not in entry:
            raise bad_request(f"entry {number} of feedback needs the id of a request, a text, and its label")
        label = _classes(entry["label"], files.classes) if files.classes else _values(entry["label"])
        if label is None:
            last = files.classes - 1
            what = f"the number of a class, 0 to {last}" if files.classes else "the true values"
            raise bad_request(f"the label of entry {number} must be {what}; of several rows, a list of them in order")
        key = files.name, identity
        known = self._known(key, files)
        if known is not None and known.said is not None and len(label) != known.numbers:
            raise bad_request(f"entry {number} has {len(label)} labels, but its request needs {known.numbers}")
        return key, label

    def _known(self, key: tuple[str, str], files: ApplicationFiles) -> Answered | None:
        """None where there is none, or the application answers with other things by now."""
        known = self._answers.get(key)
        is_odd = known is not None and known.said is not None and isinstance(known.said, list) != (files.classes > 0)
        return None if is_odd else known

    def _count(
        self, application: str, known: Answered, label: list[int] | Array, gives: OutputTensor
    ) -> tuple[int, int]:
        said = known.said
        if isinstance(said, list):
            each = len(said) // known.rows
            firsts = range(0, len(said), each)
            right = sum(said[first : first + each] == label[first : first + each] for first in firsts)
        else:
            assert said is not None
            right = int(gives.are_right(said, np.reshape(label, said.shape)).sum())
        wrong = known.rows - right
        agreement = self.agreements.setdefault((application, known.variant), Agreement())
        agreement.right += right
        agreement.wrong += wrong
        agreement.expected += max(0.0, known.expected)
        known.size -= known.said_bytes
        self._bytes -= known.said_bytes
        known.said = None
        return right, wrong


def _classes(label: Any, count: int) -> list[int] | None:
    """One class, or a list of them; None where it is neither."""
    labels = label if type(label) is list else [label]
    return labels if labels and all(type(each) is int and 0 <= each < count for each in labels) else None


def _values(label: Any) -> Array | None:
    """Numbers, one after the other; None where there are others."""
    try:
        values = np.asarray(label)
    except (ValueError, OverflowError):
        return None
    return values.ravel() if values.dtype.kind in "iuf" and values.size else None
