"""The event log of a server: what its dispatchers were told, when, and what they decided; and how plans came about. One
JSON list a line.

    ["stretto events", 10, recording, part]                 the first line of each file of a recording
    ["session", planner, options, data_aware, stored]      who plans; stored is [path, sha256] of the file of policies
                                                           that it was given, or null
    ["plan", number, plan]                                 what `plan` means in the lines that follow; a number may be
                                                           given to another plan later
    ["made", g, now_ns, correction, deployment, plan, [view_ns, rates, alive, conditions, shown, policies]]
                                                           a dispatcher; g numbers those of one log. Its first plan was
                                                           made from this view (rates and alive may be null), of the
                                                           deployment `shown` where workers begin as that plan has it
    ["submit", g, now_ns, [application, deadline_ns, tag, client, class, priority, demand, more, was_lost], ticket]
    ["cancel", g, now_ns, ticket, reason]      ["finished", g, now_ns, worker, ok, took_ns]
    ["joined" | "left" | "leaving", g, now_ns, worker]     ["advance", g, now_ns]     ["adopt", g, now_ns, plan]
    ["classified", g, now_ns, ticket, class]   ["reroute", g, now_ns, routes]
    ["choose", g, now_ns, plan]                            a plan with other tables alone, followed in place
    ["enlarge", g, now_ns, deployment]         ["inherit", g, now_ns, estimates]
    ["loaded", g, now_ns, worker, variant, ok]             a load beside the work ended
    ["decided", g, [decision, …]]
    ["planned", g, now_ns, telemetry, conditions, waiting, lines, clients, policies, plan]
        the planner was asked; waiting, lines and clients are null where it did not look, policies are
        [application, kind, workers, load, made] of those that came meanwhile, and plan is null where it failed
    ["refused", g, now_ns]                                 what was planned last cannot be followed; what was in force
                                                           before it stays
    ["under", g, now_ns, conditions]                       the plan in force under other conditions

A decision is ["run", worker, variant, [ticket, …], start_ns, expected_ns], ["drop", ticket, reason],
["load", worker, variant, start_ns, expected_ns, alone, beside], ["unload", worker, variant] or ["answer", ticket].

A recording is one file or several parts: events.jsonl, events.2.jsonl, events.3.jsonl and so on. Only the last may end
in a line that is cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

TITLE = "stretto events"
VERSION = 10
SESSION, PLAN = "session", "plan"
MADE, SUBMIT, CANCEL, FINISHED = "made", "submit", "cancel", "finished"
JOINED, LEFT, LEAVING, ADVANCE, ADOPT, DECIDED = "joined", "left", "leaving", "advance", "adopt", "decided"
CLASSIFIED, PLANNED, REFUSED, UNDER = "classified", "planned", "refused", "under"
REROUTE, CHOOSE, ENLARGE, INHERIT, LOADED = "reroute", "choose", "enlarge", "inherit", "loaded"
EVENTS = (
    *(
        SESSION,
        PLAN,
        MADE,
        SUBMIT,
        CANCEL,
        FINISHED,
        CLASSIFIED,
        JOINED,
        LEFT,
        LEAVING,
        ADVANCE,
        ADOPT,
        REROUTE,
        ENLARGE,
        INHERIT,
    ),
    *(DECIDED, PLANNED, REFUSED, UNDER, LOADED, CHOOSE),
)


def title(recording: str, part: int) -> list[Any]:
    """The first line of a part. `recording` tells parts of one recording from those of another."""
    return [TITLE, VERSION, recording, part]


def part_path(path: Path, part: int) -> Path:
    """The file of a part of the recording that begins at `path`; parts count from 1."""
    return path if part == 1 else path.with_name(f"{path.stem}.{part}{path.suffix}")


def parts_of(path: Path, first: int = 1) -> Iterator[Path]:
    """The files of a recording that are there, in order, from part `first` on."""
    for part in count(first):
        if not (file := part_path(path, part)).is_file():
            return
        yield file
