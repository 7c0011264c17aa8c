"""The requests of a load, encoded once, and what their answers are held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.client.address import Endpoint
from stretto.client.asking import Wish, infer_request
from stretto.client.load.spec import LoadSpec
from stretto.client.metadata import ApplicationMetadata
from stretto.core.errors import StrettoError

MAX_ENCODED_BYTES = 256_000_000  # of all requests together; beyond that, fewer samples are used


@dataclass(frozen=True, eq=False)
class Requests:
    """`encoded[i]` is head and body of one request; `labels[i]` are the classes of its rows, or None."""

    encoded: list[bytes]
    labels: list[tuple[int, ...]] | None


def encoded_requests(spec: LoadSpec, endpoint: Endpoint, metadata: ApplicationMetadata) -> Requests:
    """Each request has the next `rows` samples, beginning anew after the last one."""
    if len(metadata.inputs) != 1:
        raise StrettoError(f"application {spec.application} takes {len(metadata.inputs)} inputs; a load sends just one")
    inputs = np.asarray(spec.inputs)
    labels = None if spec.labels is None else np.asarray(spec.labels, dtype=np.int64)
    wish = Wish(deadline_ms=spec.deadline_ms, version=spec.version, min_accuracy=spec.min_accuracy)
    encoded: list[bytes] = []
    truths: list[tuple[int, ...]] = []
    size = 0
    for first in range(0, len(inputs), spec.rows):
        chosen = np.arange(first, first + spec.rows) % len(inputs)
        encoded.append(infer_request(endpoint, spec.application, metadata, inputs[chosen], wish).joined())
        if labels is not None:
            truths.append(tuple(labels[chosen].tolist()))
        size += len(encoded[-1])
        if size > MAX_ENCODED_BYTES:
            break
    return Requests(encoded, truths if labels is not None else None)
