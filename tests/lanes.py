"""Rules of a lane by their plain names, wherever in the lane they stand: tests name one rule and leave the rest."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from stretto.core.plan import Delays, Eager

DELAYS = tuple(field.name for field in fields(Delays))


def rules_of_lane(rules: dict[str, Any]) -> dict[str, Any]:
    """What `Lane` takes: delays and the release's own settings are put where they belong."""
    rest = dict(rules)
    delays = {name: rest.pop(name) for name in DELAYS if name in rest}
    settings = {name: rest.pop(name) for name in ("floor_rates", "adaptive_cap") if name in rest}
    if delays:
        rest["delays"] = Delays(**delays)
    if settings:
        rest["release"] = replace(rest.get("release", Eager()), **settings)
    return rest
