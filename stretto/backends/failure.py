"""Finds the query that makes a batch fail, by running halves of it again."""

from __future__ import annotations

from stretto.backends.model import Array, Batch, BatchFailure, Model


def run_batch(model: Model, inputs: Batch) -> dict[str, Array]:
    """Like `model.run`; a failure carries the position of the query at fault where one alone can be found.

    The search takes at most two further runs for each halving, so 10 for a batch of 32. Where several queries are at
    fault the first one found is named; where each half passes (memory, a fault that passed by itself), none is. What
    lies in the model's own buffers is lost by a search.
    """
    try:
        return model.run(inputs)
    except BatchFailure as failure:
        if failure.position is not None:
            raise
        size = len(next(iter(inputs.values())))
        if size == 1:
            raise BatchFailure(failure.reason, 0) from None
        if model.fixed_batch is not None:
            raise
        rows = {name: array.copy() for name, array in inputs.items()}  # a run of some may overwrite others in a buffer
        raise _culprit(model, rows, 0, size) or failure from None


def _culprit(model: Model, inputs: Batch, first: int, end: int) -> BatchFailure | None:
    """The failure of one query among [first, end), which together failed."""
    middle = (first + end) // 2
    for start, stop in ((first, middle), (middle, end)):
        failure = _failure(model, {name: array[start:stop] for name, array in inputs.items()})
        if failure is not None:
            return BatchFailure(failure.reason, start) if stop - start == 1 else _culprit(model, inputs, start, stop)
    return None


def _failure(model: Model, inputs: Batch) -> BatchFailure | None:
    try:
        model.run(inputs)
    except BatchFailure as failure:
        return failure
    return None
