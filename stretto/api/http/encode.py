"""Responses and errors into bytes, with the headers that tell how to read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from stretto.api.answers import promise
from stretto.api.datatypes import DATATYPE_OF, join_bytes
from stretto.api.errors import ApiError
from stretto.api.messages import Array, InferResponse, OutputTensor, Terms
from stretto.api.shared_memory import parameters_of
from stretto.core.outcome import Outcome

if TYPE_CHECKING:
    from stretto.live.requests import Request

ON_TIME = Outcome.ON_TIME  # asked for with every answer
MAX_READY = 64  # answers that are ready but for their numbers, by the terms of one request
NUMBERS = b',"batch_size":%d,"queue_ms":%.6f,"run_ms":%.6f,"slack_ms":%.6f,"outcome":"%b"},"outputs":['
# Headers of an answer are whole lines.
JSON_TYPE = b"content-type: application/json\r\n"
BINARY_TYPE = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"


def encode_response(response: InferResponse) -> tuple[bytes, bytes]:
    """Raw tensors follow the JSON part where an output is wanted so."""
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for output in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.array.shape,
        }
        if output.shared is not None:
            entry["parameters"] = parameters_of(output.shared)
        elif output.binary:
            data = _raw(output)
            parts.append(data)
            entry["parameters"] = {"binary_data_size": len(data)}
        else:
            entry["data"] = _listed(output.datatype, output.array)
        outputs.append(entry)
    content: dict[str, Any] = {
        "model_name": response.application,
        "model_version": response.version,
        "parameters": response.parameters,
        "outputs": outputs,
    }
    if response.id:
        content["id"] = response.id
    head = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    if not parts:
        return head, JSON_TYPE
    return b"".join((head, *parts)), BINARY_TYPE % len(head)


def encode_by_terms(terms: Terms, entered: Request) -> tuple[bytes, bytes]:
    """The same for a request that was taken by its terms, and that one variant answered: with all but the numbers made
    before.
    """
    answers = entered.answers
    assert answers is not None
    key = entered.variants[0], entered.accuracy_sum, answers.shape
    ready = terms.ready.get(key)
    if ready is None:
        if len(terms.ready) >= MAX_READY:
            terms.ready.clear()
        ready = terms.ready[key] = _ready(terms, entered, answers)
    slack_ns = entered.deadline_ns - entered.ended_ns
    outcome = b"on_time" if entered.outcome is ON_TIME else b"late"
    numbers = entered.batch, entered.queue_ns / 1e6, entered.run_ns / 1e6, slack_ns / 1e6, outcome
    if terms.wanted.binary:
        head = ready % numbers
        return head + answers.tobytes(), BINARY_TYPE % len(head)
    data = answers.ravel() if answers.dtype.char == "f" else _listed(DATATYPE_OF[terms.files.output.dtype], answers)
    return ready % (*numbers, orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)), JSON_TYPE


def _ready(terms: Terms, entered: Request, answers: Array) -> bytes:
    """Its JSON with places for numbers, and for the values where they are not to follow it."""
    gives, variant = terms.files.output, entered.variants[0]
    parameters = {"variant": variant, **promise(entered)}
    first = orjson.dumps({"model_name": terms.files.name, "model_version": variant, "parameters": parameters})
    output: dict[str, Any] = {"name": gives.name, "datatype": DATATYPE_OF[gives.dtype], "shape": answers.shape}
    if terms.wanted.binary:
        output["parameters"] = {"binary_data_size": answers.nbytes}
    last = orjson.dumps(output)[:-1].replace(b"%", b"%%")
    values = b"" if terms.wanted.binary else b',"data":%b'
    return b"".join((first[:-2].replace(b"%", b"%%"), NUMBERS, last, values, b"}]}"))


def _raw(output: OutputTensor) -> bytes:
    if output.datatype == "BYTES":
        return join_bytes(output.array.ravel().tolist())
    return output.array.tobytes()


def _listed(datatype: str, array: Array) -> Any:
    if datatype == "BYTES":
        return [text.decode("utf-8", "replace") for text in array.ravel().tolist()]
    return array.ravel().tolist() if datatype == "FP16" else array.ravel()


def encode_error(error: ApiError) -> tuple[int, bytes, bytes]:
    """Status, body and headers."""
    headers = JSON_TYPE
    if error.retry_after_s is not None:
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s))
    content: dict[str, Any] = {
        "error": error.message.encode("utf-8", "replace").decode(),
        "reason": error.reason.word,
    }
    if error.parameters:
        content["parameters"] = error.parameters
    body = orjson.dumps(content)
    return error.reason.http_status, body, headers


def encode_json(content: Any) -> bytes:
    return orjson.dumps(content)
