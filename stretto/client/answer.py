"""What came back: an HTTP response, and the answer in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from stretto.client.errors import BadAnswer, error_of
from stretto.client.json_text import json_value
from stretto.client.tensors import NUMPY_OF, Array, array_of_data, array_of_raw, checked_shape


@dataclass(slots=True)
class Response:
    """`json_length`: how much of the body is JSON; None: all of it."""

    status: int
    body: bytes
    json_length: int | None = None
    retry_after_s: float | None = None
    keeps_alive: bool = True


@dataclass(frozen=True, eq=False)
class Answer:
    """The outputs by name, and what the server says about them; a number that it does not give is NaN."""

    outputs: dict[str, Array]
    variant: str = ""
    expected_accuracy: float = math.nan
    batch_size: int = 0
    queue_ms: float = math.nan
    run_ms: float = math.nan
    slack_ms: float = math.nan
    outcome: str = ""  # on_time or late
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> Array:
        """The only output."""
        if len(self.outputs) != 1:
            raise BadAnswer(f"there are {len(self.outputs)} outputs ({', '.join(self.outputs)}); take one from outputs")
        return next(iter(self.outputs.values()))


def content_of(response: Response) -> Any:
    """The JSON of a 2xx response; raises what any other response says."""
    if 200 <= response.status < 300:
        return _json(memoryview(response.body))
    try:
        content = json_value(response.body)
    except ValueError:
        content = None
    raise error_of(response.status, content, response.retry_after_s)


def answer_of(response: Response) -> Answer:
    """The answer to an inference."""
    if not 200 <= response.status < 300:
        content_of(response)
    body = memoryview(response.body)
    json_length = len(body) if response.json_length is None else response.json_length
    if json_length > len(body):
        raise BadAnswer("the answer is shorter than the JSON that it announces")
    content = _json(body[:json_length])
    if not isinstance(content, dict) or not isinstance(content.get("outputs"), list):
        raise BadAnswer("the answer holds no outputs")
    outputs = _outputs(content["outputs"], body[json_length:])
    given = content.get("parameters")
    parameters = given if isinstance(given, dict) else {}
    return answer_of_parts(outputs, parameters, str(content.get("id") or ""), str(content.get("model_version") or ""))


def answer_of_parts(outputs: dict[str, Array], parameters: dict[str, Any], id: str, version: str = "") -> Answer:
    """What either protocol carries."""
    batch_size = parameters.get("batch_size")
    return Answer(
        outputs,
        str(parameters.get("variant") or version),
        _number(parameters, "expected_accuracy"),
        batch_size if isinstance(batch_size, int) else 0,
        _number(parameters, "queue_ms"),
        _number(parameters, "run_ms"),
        _number(parameters, "slack_ms"),
        str(parameters.get("outcome") or ""),
        id,
        parameters,
    )


def _outputs(listed: list[Any], raw: memoryview) -> dict[str, Array]:
    outputs: dict[str, Array] = {}
    place = 0
    for output in listed:
        if (
            not isinstance(output, dict)
            or not isinstance(output.get("name"), str)
            or output.get("datatype") not in NUMPY_OF
        ):
            raise BadAnswer("an output of the answer is not understood")
        name, datatype = output["name"], output["datatype"]
        shape = checked_shape(output.get("shape"), name)
        parameters = output.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            outputs[name] = array_of_data(datatype, shape, output.get("data"), name)
            continue
        if type(size) is not int or not 0 <= size <= len(raw) - place:
            raise BadAnswer(f"output {name} is cut short")
        outputs[name] = array_of_raw(datatype, shape, raw[place : place + size], name)
        place += size
    if place != len(raw):
        raise BadAnswer(f"the answer goes on {len(raw) - place} bytes after its last output")
    return outputs


def _json(text: memoryview) -> Any:
    try:
        return json_value(text)
    except ValueError:
        raise BadAnswer("the answer is no JSON") from None


def _number(parameters: dict[str, Any], name: str) -> float:
    value = parameters.get(name)
    return float(value) if isinstance(value, int | float) else math.nan
