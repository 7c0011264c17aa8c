"""What is known of a query that a model could not answer, while others try it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class FailedBatch:
    """A batch that a model failed on, whole or with some of its queries."""

    key: str
    reason: str
    is_whole: bool
    is_proven: bool = False  # another variant answered one of its queries: it was the model's fault


@dataclass(frozen=True, slots=True)
class Mishap:
    """`avoids` are keys of models that must not get the query again; `batch` is the one in which a model failed on it,
    None where no model ran; `problem` is what its client hears if nobody answers it.
    """

    avoids: frozenset[str]
    problem: str
    batch: FailedBatch | None
