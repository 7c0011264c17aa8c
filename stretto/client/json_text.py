"""JSON to and from bytes: with orjson where it is installed, else with the standard library."""

from __future__ import annotations

import json
from typing import Any

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8. ValueError where a value has no JSON form, NaN included."""
    # orjson would write NaN as null, which the server could not tell from a value left out.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _standard(text: bytes | memoryview) -> Any:
    try:
        return json.loads(bytes(text))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


json_value = _standard if orjson is None else orjson.loads
