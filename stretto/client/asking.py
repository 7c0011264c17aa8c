"""An inference as a request: what the sync client, the async client and the load generator have in common. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.client.address import Endpoint, Request, model_path
from stretto.client.errors import BadRequest
from stretto.client.json_text import json_bytes
from stretto.client.metadata import ApplicationMetadata, Inputs, prepared
from stretto.client.tensors import raw_of

MAX_DEADLINE_MS = 3_600_000.0
NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Wish:
    """Everything about an inference but its inputs; docs/serving.md explains each."""

    deadline_ms: float | None = None
    version: str = ""
    min_accuracy: float | None = None
    priority: int | None = None
    client_id: int | str | None = None
    classification: int = 0
    id: str = ""
    outputs: Sequence[str] | None = None

    def __post_init__(self) -> None:
        deadline_ms = self.deadline_ms
        if deadline_ms is not None and not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise BadRequest(f"deadline_ms is {deadline_ms}; it must be above 0 and at most {MAX_DEADLINE_MS:,.0f}")
        if self.min_accuracy is not None and not math.isfinite(self.min_accuracy):
            raise BadRequest(f"min_accuracy is {self.min_accuracy}; it is a fraction from 0 to 1")
        if self.classification < 0:
            raise BadRequest(f"classification is {self.classification}; it says how many classes to give")

    def timeout_ns(self, default_ms: float, grace_ms: float) -> int:
        """How long to wait for the answer: the deadline and a grace, so that the server's own word comes first."""
        wait_ms = default_ms if self.deadline_ms is None else self.deadline_ms + grace_ms
        return round(wait_ms * NS_PER_MS)


def infer_request(
    endpoint: Endpoint, application: str, metadata: ApplicationMetadata, inputs: Inputs, wish: Wish
) -> Request:
    """BadRequest where the inputs cannot be those of the application."""
    listed: list[dict[str, Any]] = []
    raws: list[bytes | memoryview] = []
    for tensor, array in prepared(metadata, inputs):
        raw = raw_of(array, tensor.datatype)
        raws.append(raw)
        listed.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": array.shape,
                "parameters": {"binary_data_size": len(raw)},
            }
        )
    content: dict[str, Any] = {"inputs": listed, "parameters": _parameters(wish)}
    if wish.id:
        content["id"] = wish.id
    if wish.outputs is not None or wish.classification:
        names = [tensor.name for tensor in metadata.outputs] if wish.outputs is None else wish.outputs
        classification = {"classification": int(wish.classification)} if wish.classification else {}
        content["outputs"] = [{"name": name, "parameters": {"binary_data": True, **classification}} for name in names]
    text = json_bytes(content)
    return endpoint.post(model_path(application, wish.version, "infer"), (text, *raws), len(text))


def _parameters(wish: Wish) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data_output": True}
    if wish.deadline_ms is not None:
        parameters["deadline_ms"] = float(wish.deadline_ms)
    if wish.min_accuracy is not None:
        parameters["min_accuracy"] = float(wish.min_accuracy)
    if wish.priority is not None:
        parameters["priority"] = int(wish.priority)
    if wish.client_id is not None:
        parameters["client_id"] = wish.client_id
    return parameters
