"""Planners that schedule what waits, window by window: SneakPeek and what it compares itself with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto.planners.entry import DATA_AWARE, Entry, Option

_SHORT_CIRCUIT = Option("short_circuit", "flag", "", "answer from evidence where that is worth more")
_WINDOW_OPTIONS = tuple(replace(option, default="false") for option in (DATA_AWARE, _SHORT_CIRCUIT))
_CAUTION = "share that late answers lose in planning, if evidence does nearly as well"
_ORDERS = ("priority", "first_come", "earliest_deadline")
_GROUP_OPTIONS = (
    Option("exact_groups", "integer", "6", "up to so many groups the schedule is the best one", 0, 12),
    Option("max_group", "integer", "a worker's even share", "the largest group; 0: the default", 0, 4096),
    Option("caution", "number", "0.9 (grouped: 0)", _CAUTION, 0, 1),
    Option("order", "choice", "priority", "of queries and groups", choices=_ORDERS),
    Option("trials", "integer", "1000", "changes tried to better a schedule of groups; 0: as published", 0, 100_000),
)


def _window(name: str, what: str, factory: str, *options: Option, **rest: Any) -> Entry:
    """A planner that schedules what waits, window by window."""
    where = f"sneakpeek.planner:{factory}"
    return Entry(name, what, where, options, replan_s=0.1, chooses_variants=True, by_windows=True, **rest)


ENTRIES = (
    _window(
        "sneakpeek",
        "each window scheduled in groups by application and class, by evidence of each query's class",
        "SneakPeek",
        replace(DATA_AWARE, default="true"),
        replace(_SHORT_CIRCUIT, default="true"),
        Option("split_classes", "flag", "true", "groups by application and estimated class, not application alone"),
        Option(
            "certainty", "number", "0", "share of θ that tells a class; 0: the likeliest; as published 0.5", 0, 0.99
        ),
        *_GROUP_OPTIONS,
        tried="where variants are swapped",
    ),
    _window(
        "grouped",
        "each window scheduled in groups by application (SneakPeek without evidence)",
        "grouped",
        *_WINDOW_OPTIONS,
        *_GROUP_OPTIONS,
        tried="where variants are swapped",
    ),
    _window(
        "lo_priority",
        "each window's queries by priority, each on the variant that is worth most then",
        "lo_priority",
        *_WINDOW_OPTIONS,
    ),
    _window(
        "lo_edf",
        "each window's queries by deadline, each on the variant that is worth most then",
        "lo_edf",
        *_WINDOW_OPTIONS,
    ),
    _window(
        "max_acc_edf",
        "each window's queries by deadline, each on the most accurate variant",
        "max_acc_edf",
        *_WINDOW_OPTIONS,
    ),
)
