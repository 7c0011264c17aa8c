"""What a dispatcher decides, as a driver sees it, and as it stands in an event log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.outcome import Outcome
from stretto.dispatch.records import DecisionKind

OUTCOMES = tuple(Outcome)  # by number


@dataclass(frozen=True, slots=True)
class Run:
    """Start this batch on this worker at `start_ns`, not before; it should end at `expected_ns`."""

    worker: int
    variant: int
    tickets: tuple[int, ...]
    start_ns: int
    expected_ns: int


@dataclass(frozen=True, slots=True)
class Drop:
    """This query ends without an answer."""

    ticket: int
    reason: Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """This query ends now with its evidence as the answer; no worker is asked."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Load:
    """Bring the variant into the worker's memory. `alone`: no Run waits for it, and its end is reported as finished.
    `beside`: the worker goes on with its work meanwhile, and the end is reported as loaded.

    Otherwise the next decision is the Run that needs it, and only the end of that is reported.
    """

    worker: int
    variant: int
    start_ns: int
    expected_ns: int
    alone: bool
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the worker's memory of the variant."""

    worker: int
    variant: int


Decision = Run | Drop | Answer | Load | Unload


def decisions_in(records: NDArray[np.void], decided: NDArray[np.int64]) -> list[Decision]:
    """From the compiled dispatcher's records; `decided` has the tickets that they name."""
    decisions: list[Decision] = []
    for kind, worker, variant, reason, first, count, alone, beside, start_ns, expected_ns, *_ in records.tolist():
        if kind == DecisionKind.RUN:
            decisions.append(
                Run(worker, variant, tuple(decided[first : first + count].tolist()), start_ns, expected_ns)
            )
        elif kind == DecisionKind.DROP:
            decisions.append(Drop(int(decided[first]), OUTCOMES[reason]))
        elif kind == DecisionKind.ANSWER:
            decisions.append(Answer(int(decided[first])))
        elif kind == DecisionKind.LOAD:
            decisions.append(Load(worker, variant, start_ns, expected_ns, bool(alone), bool(beside)))
        else:
            decisions.append(Unload(worker, variant))
    return decisions


def decision_as_list(decision: Decision) -> list[Any]:
    """As it stands in an event log (core/journal.py)."""
    if isinstance(decision, Run):
        numbers = [decision.worker, decision.variant, list(decision.tickets), decision.start_ns, decision.expected_ns]
        return ["run", *numbers]
    if isinstance(decision, Drop):
        return ["drop", decision.ticket, int(decision.reason)]
    if isinstance(decision, Answer):
        return ["answer", decision.ticket]
    if isinstance(decision, Load):
        times = [decision.start_ns, decision.expected_ns]
        return ["load", decision.worker, decision.variant, *times, decision.alone, decision.beside]
    return ["unload", decision.worker, decision.variant]
