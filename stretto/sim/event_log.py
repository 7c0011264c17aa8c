"""Reads the event log of a server (core/journal.py), all parts of it, line by line.

A server that was killed, or whose disk was full, leaves a last line that is cut off: that one is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.core import journal
from stretto.core.errors import StrettoError

MAX_LINE = 64_000_000


@dataclass(frozen=True)
class EventLine:
    """One event. `number` counts the lines of its own file, `share` is how much of the recording was read."""

    file: str
    number: int
    content: list[Any]
    share: float

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What goes wrong with this line is told with its place."""
        try:
            yield
        except StrettoError as error:
            raise StrettoError(f"{self.file}:{self.number}: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StrettoError(f"{self.file}:{self.number}: is no event ({type(error).__name__})") from None


def event_lines(path: Path) -> Iterator[EventLine]:
    """StrettoError where a file cannot be read, or is not what it should be."""
    parts = [*journal.parts_of(path)] or [path]
    try:
        size = max(1, sum(part.stat().st_size for part in parts))
    except OSError as error:
        raise StrettoError(f"{path} cannot be read ({error.strerror})") from None
    read, recording = 0, ""
    for place, part in enumerate(parts, 1):
        for number, text in _texts(part, is_last=place == len(parts)):
            read += len(text)
            content = _parsed(part, number, text)
            if number > 1:
                if not isinstance(content, list) or len(content) < 3 or content[0] not in journal.EVENTS:
                    raise StrettoError(f"{part.name}:{number}: is no event")
                yield EventLine(part.name, number, content, read / size)
                continue
            if not isinstance(content, list) or content[:2] != [journal.TITLE, journal.VERSION] or len(content) != 4:
                raise StrettoError(f"{part.name} is no event log of this version of Stretto; record one anew")
            recording = content[2] if place == 1 else recording
            if content != journal.title(recording, place):
                known = "it is not the first part of a recording" if place == 1 else "it is of another recording"
                raise StrettoError(f"{part.name} cannot be read here: {known}")


def _texts(part: Path, is_last: bool) -> Iterator[tuple[int, bytes]]:
    """Lines by number, whole ones only."""
    try:
        file = part.open("rb")
    except OSError as error:
        raise StrettoError(f"{part} cannot be read ({error.strerror})") from None
    with file:
        for number, text in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            if len(text) == MAX_LINE:
                raise StrettoError(f"{part.name}:{number}: is longer than a line of an event log can be")
            if text.endswith(b"\n"):
                yield number, text
            elif not is_last:
                raise StrettoError(f"{part.name}:{number}: is cut off, though the recording goes on after it")


def _parsed(part: Path, number: int, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise StrettoError(f"{part.name}:{number}: is no JSON") from None
