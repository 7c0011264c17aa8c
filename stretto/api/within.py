"""The compiled loop of bounds.py."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled


@compiled
def within(values: Any, low: float, high: float) -> bool:
    inside = True
    for value in values:
        inside &= (value >= low) & (value <= high)  # false for what is not a number
    return inside
