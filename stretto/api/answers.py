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
    is_float = flat.dtype.kind == "f"
    # Whole numbers, and true and false, are turned round by their bits: 0 and the smallest have no negative.
    order = np.argsort(-flat if is_float else ~flat, axis=1, kind="stable")[:, :count]
    texts = np.empty(order.shape, object)
    for row, places in enumerate(order.tolist()):
        for place, number in enumerate(places):
            label = f":{labels[number]}" if labels else ""
            score = f"{flat[row, number]:.6f}" if is_float else str(int(flat[row, number]))
            texts[row, place] = f"{score}:{number}{label}".encode()
    return texts.reshape(*answers.shape[:-1], count)
