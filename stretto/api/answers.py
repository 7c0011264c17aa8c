"""What a request gets: its answer in the protocol's words, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stretto.api.datatypes import DATATYPE_OF
from stretto.api.errors import REASONS, ApiError, Reason
from stretto.api.messages import Array, InferResponse, OutputTensor, WantedOutput
from stretto.core.outcome import Outcome
from stretto.live.requests import Request

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles

RETRY_S = 1.0
SORTED_AT_ONCE = 4_096  # numbers that are sorted sooner than their best are found
REFUSALS = {reason.word: reason for reason in (Reason.UNAVAILABLE, Reason.NOT_FOUND, Reason.OVERLOADED)}
SENTENCES = {
    Outcome.DROPPED_EXPIRED: "the deadline passed before it could run",
    Outcome.DROPPED_INFEASIBLE: "no variant can answer by the deadline any more",
    Outcome.DROPPED_OVERLOAD: "there is too much work; try again later",
    Outcome.DROPPED_CANCELLED: "it was withdrawn",
    Outcome.FAILED: "it could not be answered",
}


def answer(entered: Request, files: ApplicationFiles, identity: str, wanted: WantedOutput) -> InferResponse:
    """The response to a request that was answered."""
    answers = entered.answers
    assert answers is not None
    gives = files.output
    if wanted.classification:
        best = classified(answers, wanted.classification, files.labels)
        output = OutputTensor(gives.name, "BYTES", best, wanted.binary)
    else:
        output = OutputTensor(gives.name, DATATYPE_OF[gives.dtype], answers, wanted.binary)
    variant = entered.variants[0] if len(entered.variants) == 1 else ",".join(entered.variants)
    parameters = {
        "variant": variant,
        **promise(entered),
        "batch_size": entered.batch,
        "queue_ms": entered.queue_ns / 1e6,
        "run_ms": entered.run_ns / 1e6,
        "slack_ms": (entered.deadline_ns - entered.ended_ns) / 1e6,
        "outcome": "on_time" if entered.outcome is Outcome.ON_TIME else "late",
    }
    if entered.short_circuited:
        parameters["short_circuit"] = True
        parameters["posterior"] = posterior_text(entered.short_circuited, entered.rows)
    return InferResponse(files.name, variant, identity, [output], parameters)


def promise(entered: Request) -> dict[str, float]:
    """What its answers are expected to be worth; nothing where nobody knows that of a variant that answered."""
    expected = entered.accuracy_sum / entered.rows
    return {"expected_accuracy": round(expected, 6)} if expected >= 0 else {}


def posterior_text(posteriors: Mapping[int, Sequence[float]], rows: int) -> str:
    """JSON: the posterior of the one row, or by row number of those that were answered by it."""
    rounded = {row: [round(share, 6) for share in theta] for row, theta in sorted(posteriors.items())}
    return json.dumps(rounded[0] if rows == 1 else rounded)


def refusal(entered: Request, parameters: Mapping[str, str]) -> ApiError:
    """Why a request that was entered got no answer."""
    assert entered.outcome is not None
    if entered.refusal:  # where it was to be scheduled
        reason = REFUSALS[entered.refusal]
        return ApiError(reason, entered.problem, RETRY_S if reason is Reason.UNAVAILABLE else None, parameters)
    reason = REASONS[entered.outcome]
    message = SENTENCES[entered.outcome]
    if entered.problem:
        message = f"{message}: {entered.problem}"
    error = ApiError(reason, message, RETRY_S if reason is Reason.OVERLOADED else None, parameters)
    error.is_counted = True
    return error


def classified(answers: Array, count: int, labels: tuple[str, ...]) -> Array:
    """The best classes of each row as "score:index:label", or "score:index" where there are no labels, best first."""
    count = min(count, answers.shape[-1])
    flat = answers.reshape(-1, answers.shape[-1])
    order = best_first(flat, count)
    places = order.ravel().tolist()
    scores = np.take_along_axis(flat, order, axis=1).ravel().tolist()
    form = "%.6f:%d" if flat.dtype.kind == "f" else "%d:%d"
    if labels:
        form += ":%s"
        words = [form % (score, place, labels[place]) for score, place in zip(scores, places, strict=True)]
    else:
        words = [form % pair for pair in zip(scores, places, strict=True)]
    texts = np.empty(len(words), object)
    texts[:] = [word.encode() for word in words]
    return texts.reshape(*answers.shape[:-1], count)


def best_first(flat: Array, count: int) -> Array:
    """Where the `count` largest numbers of each row stand, the largest first, and of equal ones the first one first.
    Only those are sorted: to sort a row of a million would hold the event loop for a tenth of a second.
    """
    # Whole numbers, and true and false, are turned round by their bits: 0 and the smallest have no negative.
    keys = -flat if flat.dtype.kind == "f" else ~flat
    if count < flat.shape[1] and flat.size > SORTED_AT_ONCE:
        bounds = np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
        is_chosen = keys <= bounds
        chosen_counts = np.count_nonzero(is_chosen, axis=1, keepdims=True)
        if np.any(chosen_counts > count):  # some are as good as the last one: only the first of these
            is_better = keys < bounds
            room = count - np.count_nonzero(is_better, axis=1, keepdims=True)
            is_equal = is_chosen & ~is_better
            is_chosen = is_better | (is_equal & (np.cumsum(is_equal, axis=1, dtype=np.int32) <= room))
            chosen_counts = np.count_nonzero(is_chosen, axis=1, keepdims=True)
        if np.all(chosen_counts == count):  # not where the last one is no number
            chosen = np.nonzero(is_chosen)[1].reshape(-1, count)
            order = np.argsort(np.take_along_axis(keys, chosen, axis=1), axis=1, kind="stable")
            return np.take_along_axis(chosen, order, axis=1)
    return np.argsort(keys, axis=1, kind="stable")[:, :count]
