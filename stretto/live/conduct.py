"""How models fared in their last batches, and when that is reason to set one aside.

Three batches in a row without an answer, or failures in a fifth of the last hundred. What passed before the first
failure need not be counted: it changes neither number.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

IN_A_ROW = 3  # batches without any answer
LATELY = 100  # batches that are remembered
MOST = 20  # of these, with a failure
NEVER = 100  # batches without any answer, of a model that has never answered


class Lately:
    """The last batches of a model."""

    def __init__(self) -> None:
        self._failures: deque[bool] = deque(maxlen=LATELY)
        self._in_a_row = 0

    def passed(self) -> None:
        self._failures.append(False)
        self._in_a_row = 0

    def failed(self, is_whole: bool) -> str:
        """One more failed; in words why that is too much, or nothing. `is_whole`: none of its queries was answered."""
        self._failures.append(True)
        self._in_a_row = self._in_a_row + 1 if is_whole else 0
        failures = sum(self._failures)
        if self._in_a_row >= IN_A_ROW:
            return f"it failed on {self._in_a_row} batches in a row"
        return f"it failed on {failures} of its last {len(self._failures)} batches" if failures >= MOST else ""

    @property
    def is_clean(self) -> bool:
        return not any(self._failures)


@dataclass
class Conduct:
    """Of a model that failed lately. `proven` counts the batches with a query that another variant answered then: those
    were the model's fault. `suspected` counts all that failed, where it may have been the queries'.
    """

    proven: Lately = field(default_factory=Lately)
    suspected: Lately = field(default_factory=Lately)
    unanswered: int = 0  # batches without any answer, where it never gave one
    no_trial_before_ns: int = 0

    def passed(self) -> None:
        self.proven.passed()
        self.suspected.passed()

    @property
    def is_clean(self) -> bool:
        return self.proven.is_clean and self.suspected.is_clean
