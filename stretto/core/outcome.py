"""How a query ends. Every query ends in exactly one of these, and is counted there (ARCHITECTURE, idea 3)."""

from enum import IntEnum


class Outcome(IntEnum):
    """The final state of a query; DROPPED_* carry their reason in the name."""

    ON_TIME = 0
    LATE = 1
    DROPPED_INFEASIBLE = 2  # could no longer finish by its deadline
    DROPPED_EXPIRED = 3  # its deadline had already passed
    DROPPED_OVERLOAD = 4  # refused by a full lane, or given up so that a larger batch could run
    DROPPED_CANCELLED = 5  # its client withdrew it
    FAILED = 6  # the batch, or the worker under it, failed

    @property
    def is_answer(self) -> bool:
        """The client received an answer, in time or not."""
        return self <= Outcome.LATE


OUTCOME_COUNT = len(Outcome)
