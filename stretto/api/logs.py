"""Logs on standard error: sentences for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
import time

from stretto.core.errors import StrettoError

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


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


def set_up_logs(log_format: str, level: str) -> None:
    """For the whole process."""
    if level not in LEVELS:
        raise StrettoError(f"there is no log level {level[:20]!r}; there are {', '.join(LEVELS)}")
    if log_format not in FORMATS:
        raise StrettoError(f"there is no log format {log_format[:20]!r}; there are {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "grpc", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
