"""The files that a server's events are recorded into (core/journal.py has their lines).

Recording never touches a query. Events go into a bounded buffer, and a thread of its own writes them, at least every
second. Where that fails (a full disk, one that is too slow, an event that cannot be written) the recording stops, says
so once, and what was written until then can be replayed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stretto.core import journal
from stretto.core.errors import StrettoError
from stretto.core.plain import to_plain
from stretto.core.plan import Plan
from stretto.core.snapshot import RecordingState
from stretto.live.spool import Spool

log = logging.getLogger("stretto.live")

EAGER_BYTES = 1 << 18  # so much is written without waiting for the second to pass
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
CLOSE_S = 5.0  # that the end of the server waits for the disk
MOST_PLANS = 256  # that lines can refer to at a time


@dataclass(frozen=True)
class RecordOptions:
    """How much is written, and where that stands in the way of something."""

    overwrite: bool = False
    part_bytes: int = 256_000_000  # of one file; then the next part begins
    total_bytes: int = 10_000_000_000  # of all parts; then the recording stops
    buffer_bytes: int = 64_000_000  # that may wait for the disk
    flush_s: float = 1.0


class Recording:
    """`write` and `tell` are called on the loop. After an error they do nothing."""

    def __init__(self, path: Path, options: RecordOptions) -> None:
        """StrettoError where the file cannot be written, or is there already."""
        self._path, self._options = path, options
        self._identity = secrets.token_hex(8)
        self._part, self._part_bytes, self._total_bytes = 1, 0, 0
        self._has_events = False  # the part that is open, beside its title
        self._problem = ""  # nothing more is taken
        self._is_broken = False  # nothing more is written
        self._stopping = threading.Lock()
        self._plans: OrderedDict[bytes, int] = OrderedDict()  # number by digest, the one used last at the end
        self._last_plan: tuple[Plan, int] | None = None
        self._file, self._is_stream = _opened(path, options.overwrite)
        self._spool = Spool(
            "recording",
            self._save,
            most_bytes=options.buffer_bytes,
            eager_bytes=EAGER_BYTES,
            period_s=options.flush_s,
        )
        self.write(journal.title(self._identity, 1))

    @property
    def is_active(self) -> bool:
        return not self._problem

    @property
    def state(self) -> RecordingState:
        return RecordingState(self.is_active, self._total_bytes, self._problem)

    def write(self, line: list[Any]) -> None:
        """A line of plain data."""
        if self._problem:
            return
        try:
            if not self._spool.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)):
                self._stop("the disk is slower than what is to be written")
        except Exception as error:
            self._stop(f"an event cannot be written ({type(error).__name__})")

    def tell(self, line: Callable[[], list[Any]]) -> None:
        """A line that takes work to make. It is made only while it is wanted, and where that fails nobody notices."""
        if self._problem:
            return
        try:
            self.write(line())
        except Exception as error:
            self._stop(f"an event cannot be written ({type(error).__name__})")

    def number_of(self, plan: Plan) -> int:
        """By which lines refer to a plan. One that was not written yet, or not lately, is written first."""
        if self._last_plan is not None and self._last_plan[0] is plan:
            return self._last_plan[1]
        text = orjson.dumps(to_plain(plan))
        digest = hashlib.blake2b(text, digest_size=16).digest()
        number = self._plans.pop(digest, None)
        if number is None:
            number = len(self._plans) if len(self._plans) < MOST_PLANS else self._plans.popitem(last=False)[1]
            self.write([journal.PLAN, number, orjson.Fragment(text)])
        self._plans[digest] = number
        self._last_plan = (plan, number)
        return number

    def close(self) -> None:
        is_written = self._spool.close(CLOSE_S)
        if not is_written:
            self._stop(f"the disk did not take the rest within {CLOSE_S:.0f} s")
            return  # the thread still has the file
        try:
            os.close(self._file)
        except OSError as error:  # a network disk may say only now that it took nothing
            self._stop(error.strerror or type(error).__name__)

    def _stop(self, problem: str) -> None:
        with self._stopping:
            if self._problem:
                return
            self._problem = problem
        log.error("recording into %s has stopped, and serving goes on without: %s", self._path.name, problem)

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _save(self, lines: bytearray) -> None:
        """After the first error nothing more is written: a replay needs every event up to the last."""
        if self._is_broken:
            return
        try:
            start = 0
            while start < len(lines):
                end = self._end_of_part(lines, start)
                if end == start:
                    self._begin_part()
                    continue
                if self._total_bytes + end - start > self._options.total_bytes:
                    raise StrettoError(f"it has the {self._options.total_bytes / 1e6:g} MB that it may have")
                self._write_out(lines[start:end])
                start = end
        except Exception as error:
            self._is_broken = True
            reason = error.strerror if isinstance(error, OSError) else None
            self._stop(reason or str(error) or type(error).__name__)

    def _end_of_part(self, lines: bytearray, start: int) -> int:
        """As far as whole lines fit into the part that is open; a part has at least one."""
        room = self._options.part_bytes - self._part_bytes
        if self._is_stream or len(lines) - start <= room:
            return len(lines)
        end = lines.rfind(b"\n", start, start + max(0, room)) + 1
        if end > start:
            return end
        return start if self._has_events else lines.find(b"\n", start) + 1

    def _begin_part(self) -> None:
        self._part += 1
        file = os.open(journal.part_path(self._path, self._part), NEW_FILE, 0o644)
        before, self._file = self._file, file
        os.close(before)
        self._part_bytes = 0
        self._write_out(orjson.dumps(journal.title(self._identity, self._part), option=orjson.OPT_APPEND_NEWLINE))
        self._has_events = False

    def _write_out(self, lines: bytes | bytearray) -> None:
        rest = memoryview(lines)
        while rest:
            count = os.write(self._file, rest)
            rest = rest[count:]
            self._part_bytes += count
            self._total_bytes += count
        self._has_events = True


def _opened(path: Path, overwrite: bool) -> tuple[int, bool]:
    """A descriptor, and whether it is of something else than a file: a device or a pipe has no parts, and nothing in it
    that could be overwritten.
    """
    try:
        if path.exists() and not path.is_file():
            # Without waiting for the reader of a pipe to come.
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(descriptor, True)
            return descriptor, True
        parts = [*journal.parts_of(path)] or [*journal.parts_of(path, 2)]  # those of a first one that was removed too
        if parts and not overwrite:
            raise StrettoError(
                f"{parts[0]} is there already; record into another file, or say --record-overwrite to replace it"
            )
        for part in parts:
            part.unlink()
        return os.open(path, NEW_FILE, 0o644), False
    except OSError as error:
        raise StrettoError(f"{path} cannot be written ({error.strerror})") from None
