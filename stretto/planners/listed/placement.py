"""Planners that place variants on workers."""

from __future__ import annotations

from stretto.planners.entry import Option, following

ENTRIES = (
    following(
        "proteus",
        "an integer program places one variant on each worker and routes by shares, for the demand of past windows",
        "proteus:Proteus",
        Option("headroom", "number", "1.05", "times the demand that workers are planned for", 0.2, 10),
        replan_s=10.0,
        tried="if unequal",
    ),
)
