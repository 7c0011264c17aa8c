"""Log and trace settings by Triton's names, as far as they mean something here; what cannot be done is refused.

The level of the log is the one of --log-level: levels include each other, so that warnings cannot be left out while
less important lines are written. Spans are those of --traces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from stretto.api.errors import ApiError, bad_request
from stretto.api.logs import is_json, set_level
from stretto.api.tracing import Sampling, Tracing

log = logging.getLogger("stretto.api")

FLAGS = ("log_info", "log_warning", "log_error")
SPANS, NO_SPANS = "TIMESTAMPS", "OFF"
MAX_NUMBER = 2**31 - 1
CUMULATIVE = (
    "levels of the log include each other: log_warning needs log_error, log_info needs log_warning, and "
    "log_verbose_level above 0 needs log_info"
)
NOT_TRACED = "the server makes no spans: start it with --traces"


def log_settings() -> dict[str, bool | int | str]:
    """As they are in force."""
    level = logging.getLogger().level
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": True,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "json" if is_json() else "text",
    }


def update_log_settings(changes: Mapping[str, Any]) -> dict[str, bool | int | str]:
    """All of the changes or, with an ApiError, none. None in the place of a value changes nothing."""
    before = log_settings()
    changes = {key: value for key, value in changes.items() if value is not None}
    for key, value in changes.items():
        if key in FLAGS:
            if not isinstance(value, bool):
                raise bad_request(f"{key} must be true or false")
        elif key == "log_verbose_level":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
                raise bad_request("log_verbose_level must be a whole number from 0")
        elif key not in before:
            raise _unknown(key, before)
        elif value != before[key]:
            raise bad_request(f"{key} is stated at the start of the server (stretto serve), and cannot be changed")
    after = before | changes
    if not after["log_error"]:
        raise bad_request("errors are always logged; log_error must be true")
    is_debug = int(after["log_verbose_level"]) > 0
    if (after["log_info"] and not after["log_warning"]) or (is_debug and not after["log_info"]):
        raise bad_request(CUMULATIVE)
    level = "debug" if is_debug else "info" if after["log_info"] else "warning" if after["log_warning"] else "error"
    if changes:
        set_level(level)
        log.warning("the level of the log is %s now, by a call of management", level)
    return log_settings()


def trace_settings(tracing: Tracing | None, application: str = "") -> dict[str, str | list[str]]:
    """Of one application, or of all that have none of their own ("")."""
    sampling = Sampling(is_on=False) if tracing is None else tracing.sampling_of(application)
    return {
        "trace_level": [SPANS if sampling.is_on else NO_SPANS],
        "trace_rate": str(sampling.every),
        "trace_count": str(sampling.left),
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def update_trace_settings(
    tracing: Tracing | None, changes: Mapping[str, Any], application: str = ""
) -> dict[str, str | list[str]]:
    """All of the changes or, with an ApiError, none. None, or no value: as for all applications, or as at the start."""
    before = trace_settings(tracing, application)
    usual = tracing.sampling_of() if tracing is not None and application else Sampling(is_on=tracing is not None)
    sampling = usual if tracing is None else tracing.sampling_of(application)
    is_on, every, left = sampling.is_on, sampling.every, sampling.left
    for key, given in changes.items():
        values = _texts(key, given)
        if key == "trace_level":
            is_on = _level(values) if values else usual.is_on
        elif key == "trace_rate":
            every = _number(key, values, 1) if values else usual.every
        elif key == "trace_count":
            left = _number(key, values, -1) if values else usual.left
        elif key not in before:
            raise _unknown(key, before)
        elif values and values != [before[key]]:
            raise bad_request(f"{key} cannot be changed: spans are sent as OpenTelemetry is configured")
    chosen = (is_on, every, left)
    if tracing is not None:
        is_usual = bool(application) and chosen == (usual.is_on, usual.every, usual.left)
        tracing.sample(application, None if is_usual else Sampling(*chosen))
    elif chosen != (sampling.is_on, sampling.every, sampling.left):
        raise bad_request(NOT_TRACED)
    return trace_settings(tracing, application)


def _level(values: list[str]) -> bool:
    if values == [NO_SPANS]:
        return False
    if values == [SPANS]:
        return True
    raise bad_request(f'trace_level can be ["{SPANS}"] or ["{NO_SPANS}"]: spans have times, and never tensors')


def _number(key: str, values: list[str], low: int) -> int:
    text = values[0] if len(values) == 1 else ""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 10:
        raise bad_request(f"{key} must be one whole number, written as a string")
    number = int(text)
    if not low <= number <= MAX_NUMBER:
        raise bad_request(f"{key} must be a whole number from {low} to {MAX_NUMBER}")
    return number


def _texts(key: str, given: Any) -> list[str]:
    """Clients send a string, a number or a list of strings; nothing stands for what was there before."""
    if given is None:
        return []
    values = given if isinstance(given, list) else [given]
    if len(values) > 16 or any(isinstance(value, bool) or not isinstance(value, str | int) for value in values):
        raise bad_request(f"{key[:60]} must be a string, or a list of strings")
    return [str(value)[:256] for value in values]


def _unknown(key: str, known: Mapping[str, Any]) -> ApiError:
    return bad_request(f"there is no setting {key[:60]!r}; there are {', '.join(known)}")
