"""Logs on standard error: sentences for people, or one JSON object a line for machines.

A thread of its own writes them. A disk that is full, a pipe that is closed or that nobody reads costs lines of the log
(which are counted), never a query.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time

from stretto.core.errors import StrettoError
from stretto.live.spool import Spool

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
WAITING_BYTES = 4_000_000
FLUSH_S = 1.0  # that the end waits for a log that takes nothing
STANDARD_ERROR = 2
NOBODY = -1  # the descriptor where there is no standard error


class JsonLines(logging.Formatter):
    """Fields: time (UTC), level, logger, message, and error where there was one."""

    converter = staticmethod(time.gmtime)  # type: ignore[assignment]

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


class LogLines(logging.Handler):
    """All that a server says on standard error, in order. `lost` counts the lines that could not be written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.lost = 0
        self._descriptor = descriptor
        self._spool = Spool("log", self._save, most_bytes=WAITING_BYTES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.say(self.format(record))
        except Exception:  # a message whose arguments do not fit it
            self.lost += 1

    def say(self, text: str) -> None:
        """A line as it stands, for whoever started the server."""
        if not self._spool.append(text.encode("utf-8", "backslashreplace") + b"\n"):
            self.lost += 1

    def flush(self) -> None:
        self._spool.flush(FLUSH_S)

    def _save(self, lines: bytearray) -> None:
        """On the thread."""
        rest = memoryview(lines)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody who shares it made it so
                select.select((), (self._descriptor,), ())
            except OSError:  # it may have room again for the next line
                self.lost += bytes(rest).count(b"\n")
                return


def set_up_logs(log_format: str, level: str) -> LogLines:
    """For the whole process."""
    if level not in LEVELS:
        raise StrettoError(f"there is no log level {level[:20]!r}; there are {', '.join(LEVELS)}")
    if log_format not in FORMATS:
        raise StrettoError(f"there is no log format {log_format[:20]!r}; there are {', '.join(FORMATS)}")
    handler = LogLines(_standard_error())
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Also of libraries that say much."""
    logging.getLogger().setLevel(level.upper())
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def is_json() -> bool:
    """The log of this process is written for machines."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def lost_lines() -> int:
    """Of the log of this process."""
    return sum(handler.lost for handler in logging.getLogger().handlers if isinstance(handler, LogLines))


def _standard_error() -> int:
    """A descriptor of our own: the number of one that was closed may be a client's connection by the next line.

    Numbers of standard streams that are free are taken up first. uvloop ends the process where it gets one of them.
    """
    while (taken := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        pass
    os.close(taken)
    try:
        return NOBODY if sys.stderr is None else os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        return NOBODY
