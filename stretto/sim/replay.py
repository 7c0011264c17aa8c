"""Replays the event log of a live server: the same events into a fresh dispatcher, and decisions compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.core import journal
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plain import from_plain
from stretto.dispatch.dispatcher import Dispatcher, decision_as_list

MAX_LINE = 64_000_000
MAX_DIFFERENCES = 20


@dataclass
class Replay:
    """What came of it. `differences` are the first ones found, in words."""

    events: int = 0
    decisions: int = 0
    dispatchers: int = 0
    submitted: int = 0
    span_ns: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    difference_count: int = 0

    @property
    def is_identical(self) -> bool:
        return self.difference_count == 0


@dataclass
class _One:
    dispatcher: Dispatcher
    decided: list[list[Any]] = field(default_factory=list)  # since the log's last line of decisions


def replay(path: Path, progress: Callable[[float], None] | None = None) -> Replay:
    """StrettoError where the file is no event log; a line cut off at its end is left out."""
    result = Replay()
    ones: dict[int, _One] = {}
    first_ns: int | None = None
    for number, line, share in lines(path):
        try:
            kind, which, *rest = line
            if kind == journal.DECIDED:
                _compare(ones[which], rest[0], number, result)
                continue
            now_ns = _whole(rest[0])
            first_ns = now_ns if first_ns is None else first_ns
            result.span_ns = max(result.span_ns, now_ns - first_ns)
            _apply(kind, which, rest, ones, number, result)
        except StrettoError as error:
            raise StrettoError(f"{path.name}:{number}: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StrettoError(f"{path.name}:{number}: is no event ({type(error).__name__})") from None
        result.events += 1
        if progress is not None and number % 1000 == 0:
            progress(share)
    for one in ones.values():
        telemetry = one.dispatcher.telemetry(one.dispatcher.now_ns)
        for outcome in Outcome:
            count = int(telemetry.outcomes[:, outcome].sum())
            result.outcomes[outcome.name.lower()] = result.outcomes.get(outcome.name.lower(), 0) + count
    result.dispatchers = len(ones)
    return result


def lines(path: Path) -> Iterator[tuple[int, list[Any], float]]:
    """(line number, content, share of the file read)."""
    try:
        size = max(1, path.stat().st_size)
        file = path.open("rb")
    except OSError as error:
        raise StrettoError(f"{path} cannot be read ({error.strerror})") from None
    with file:
        read = 0
        for number, text in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            read += len(text)
            if len(text) == MAX_LINE:
                raise StrettoError(f"{path.name}:{number}: is longer than a line of an event log can be")
            if not text.endswith(b"\n"):
                return  # the server ended while it wrote this
            try:
                content = json.loads(text)
            except (ValueError, RecursionError):
                raise StrettoError(f"{path.name}:{number}: is no JSON") from None
            if number == 1:
                if content != [journal.TITLE, journal.VERSION]:
                    raise StrettoError(f"{path.name} is no event log of this version of Stretto; record one anew")
                continue
            if not isinstance(content, list) or len(content) < 3 or content[0] not in journal.EVENTS:
                raise StrettoError(f"{path.name}:{number}: is no event")
            yield number, content, read / size


def _apply(kind: str, which: int, rest: list[Any], ones: dict[int, _One], number: int, result: Replay) -> None:
    now_ns = rest[0]
    if kind == journal.MADE:
        dispatcher = Dispatcher(from_plain(rest[2]), from_plain(rest[3]), correction=rest[1], now_ns=now_ns)
        ones[which] = _One(dispatcher, [decision_as_list(decision) for decision in dispatcher.decisions()])
        return
    one = ones[which]
    dispatcher = one.dispatcher
    if kind == journal.SUBMIT:
        *numbers, more = rest[1]
        application, deadline_ns, tag, client, query_class, priority, demand = map(_whole, numbers)
        ticket = dispatcher.submit(
            now_ns, application, deadline_ns, tag, client, query_class, priority, demand, _truth(more)
        )
        result.submitted += 1
        if ticket != rest[2]:
            _differ(result, f"line {number}: ticket {ticket} here, {rest[2]} live")
    elif kind == journal.CANCEL:
        dispatcher.cancel(now_ns, _whole(rest[1]), Outcome(rest[2]))
    elif kind == journal.CLASSIFIED:
        dispatcher.classified(now_ns, _whole(rest[1]), _whole(rest[2]))
    elif kind == journal.FINISHED:
        dispatcher.finished(now_ns, _whole(rest[1]), _truth(rest[2]), _whole(rest[3]))
    elif kind == journal.JOINED:
        dispatcher.worker_joined(now_ns, _whole(rest[1]))
    elif kind == journal.LEFT:
        dispatcher.worker_left(now_ns, _whole(rest[1]))
    elif kind == journal.ADVANCE:
        dispatcher.advance(now_ns)
    elif kind == journal.REROUTE:
        dispatcher.reroute(now_ns, from_plain(rest[1]))
    elif kind == journal.ENLARGE:
        dispatcher.enlarge(now_ns, from_plain(rest[1]))
    elif kind == journal.INHERIT:
        dispatcher.inherit(now_ns, from_plain(rest[1]))
    else:
        dispatcher.adopt(now_ns, from_plain(rest[1]))
    one.decided += [decision_as_list(decision) for decision in dispatcher.decisions()]


def _whole(value: Any) -> int:
    """Another type would make Numba compile the dispatcher once more."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError(value)
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(value)
    return value


def _compare(one: _One, live: list[Any], number: int, result: Replay) -> None:
    here, one.decided = one.decided, []
    result.decisions += len(live)
    if here != live:
        _differ(result, f"line {number}: decided {str(here)[:200]} here, {str(live)[:200]} live")


def _differ(result: Replay, text: str) -> None:
    result.difference_count += 1
    if len(result.differences) < MAX_DIFFERENCES:
        result.differences.append(text)
