"""The configuration file of `stretto serve`: what its options say, the limits, and the planner's own options.

A mistake is told with its line. What is given on the command line goes before what the file says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stretto.api.limits import Limits
from stretto.config.fields import Fields, read_fields
from stretto.core.errors import StrettoError
from stretto.core.verdict import GivenValue
from stretto.live.fleet import read_worker
from stretto.live.scaling_options import ACTUATORS, BY
from stretto.planners.registry import NAMES, planner_entry
from stretto.planning.autoscale_options import AutoscaleOptions

Reader = Callable[[Fields, str], Any]


def _port(table: Fields, key: str) -> int:
    return table.integer(key, -1, 65_535)


def _text(table: Fields, key: str) -> str:
    return table.text(key)


def _path(table: Fields, key: str) -> Path:
    """As the file's own folder sees it."""
    return (table.document.folder or Path()) / table.text(key)


def _texts(table: Fields, key: str) -> list[str]:
    return list(table.texts(key))


def _workers(table: Fields, key: str) -> list[str]:
    """As for --worker, each read once so that a mistake gets its line."""
    workers = list(table.texts(key))
    for position, text in enumerate(workers):
        try:
            read_worker(text)
        except StrettoError as error:
            table.fail(str(error), key, position)
    return workers


def _flag(table: Fields, key: str) -> bool:
    return table.flag(key, False)


def _whole(low: int, high: int) -> Reader:
    return lambda table, key: table.integer(key, low, high)


def _number(low: float, high: float) -> Reader:
    return lambda table, key: table.number(key, low, high)


def _choice(*options: str) -> Reader:
    return lambda table, key: table.choice(key, options)


# By table: the keys, which are the names of the command line's options.
KEYS: dict[str, dict[str, Reader]] = {
    "listen": {
        "host": _text,
        "http_port": _port,
        "grpc_port": _port,
        "management_host": _text,
        "management_port": _port,
        "management_grpc_port": _port,
        "token_file": _path,
        "management_token_file": _path,
        "tls_certificate": _path,
        "tls_key": _path,
        "shared_memory": _flag,
        "front_ends": _whole(1, 64),
    },
    "workers": {
        "workers": _whole(0, 1024),
        "worker": _workers,
        "executor": _choice("thread", "process"),
        "threads": _whole(1, 1024),
        "device": _text,
        "kind": _text,
        "worker_memory_mb": _number(1, 1e9),
        "worker_rss_mb": _number(0, 1e9),
        "hang_s": _number(0.1, 86_400),
        "load_s": _number(0.1, 86_400),
    },
    "models": {
        "variant": _texts,
        "reload_s": _number(0, 86_400),
        "policies": _path,
        "plans": _path,
        "fresh": _flag,
        "no_judging": _flag,
        "data_aware": _flag,
        "ready_all": _flag,
        "tell_failures": _flag,
    },
    "clients": {
        "client_requests": _number(0, 1e9),
        "client_worker_ms": _number(0, 1e9),
        "limit_by": _choice("client", "token"),
    },
    "log": {
        "record": _path,
        "record_overwrite": _flag,
        "record_file_mb": _number(0.001, 1e9),
        "record_total_mb": _number(0.001, 1e9),
        "traces": _flag,
        "log_format": _choice("text", "json"),
        "log_level": _choice("debug", "info", "warning", "error"),
    },
    "end": {"drain_grace": _number(0, 86_400), "drain_s": _number(0, 86_400)},
}
AUTOSCALE_KEYS: dict[str, Reader] = {
    "actuator": _choice(*ACTUATORS),
    "by": _choice(*BY),
    "webhook": _text,
    "period_s": _number(0.1, 86_400),
    "accuracy": _number(0, 1),
}
MOST = 2**40


@dataclass(frozen=True)
class ServeConfig:
    """`values` by the name of the option; nothing where the file is silent."""

    values: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    planner_options: dict[str, GivenValue] = field(default_factory=dict)
    autoscale: dict[str, Any] = field(default_factory=dict)  # of the autoscaler, by name
    autoscale_token_file: Path | None = None
    workers: Fields | None = None  # the table that lists them, for what only a repository can tell


def read_serve_config(file: Path | None) -> ServeConfig:
    """ConfigError with file and line where something is wrong; no file says nothing."""
    if file is None:
        return ServeConfig()
    top = read_fields(file)
    values: dict[str, Any] = {}
    for name, keys in KEYS.items():
        table = top.part(name)
        if table is not None:
            values |= {key: read(table, key) for key, read in keys.items() if table.has(key)}
            table.done(list(keys))
    scaling = top.part("autoscale")
    token_file = None if scaling is None or not scaling.has("token_file") else _path(scaling, "token_file")
    limits, planner = _limits(top.part("limits")), _planner(top.part("planner"), values)
    config = ServeConfig(values, limits, planner, _autoscale(scaling, values), token_file, top.part("workers"))
    top.done([*KEYS, "limits", "planner", "autoscale"])
    return config


def _autoscale(table: Fields | None, values: dict[str, Any]) -> dict[str, Any]:
    """Its options by the names of the command line's, without their first word; the autoscaler's own by theirs."""
    if table is None:
        return {}
    if table.has("workers"):
        values["autoscale"] = list(table.texts("workers"))
    for key, read in AUTOSCALE_KEYS.items():
        if table.has(key):
            values[f"autoscale_{key}"] = read(table, key)
    options: dict[str, Any] = {
        each.name: (table.integer(each.name, 1, 1000) if each.type == "int" else table.number(each.name, 0, 86_400))
        for each in fields(AutoscaleOptions)
        if each.name not in ("kinds", "period_s") and table.has(each.name)
    }
    with table.at():
        AutoscaleOptions(**options)
    table.done(["workers", *AUTOSCALE_KEYS, "token_file"])
    return options


def _limits(table: Fields | None) -> dict[str, Any]:
    if table is None:
        return {}
    limits: dict[str, Any] = {}
    for each in fields(Limits):
        if table.has(each.name):
            is_whole = isinstance(each.default, int)
            limits[each.name] = table.integer(each.name, 1, MOST) if is_whole else table.number(each.name, 0.001, MOST)
    table.done([each.name for each in fields(Limits)])
    return limits


def _planner(table: Fields | None, values: dict[str, Any]) -> dict[str, GivenValue]:
    if table is None:
        return {}
    values["planner"] = table.text("name")
    if ":" not in values["planner"]:
        table.choice("name", NAMES)
    if table.has("replan_ms"):
        values["replan_ms"] = table.number("replan_ms", 2, 3_600_000)
    given_options: dict[str, GivenValue] = {}
    with table.at("name"):
        options = planner_entry(values["planner"]).options
    for option in options:
        if not table.has(option.name):
            continue
        if option.kind == "flag":
            given_options[option.name] = table.flag(option.name, False)
        elif option.kind == "file":
            given_options[option.name] = str(_path(table, option.name))
        elif option.kind == "choice":
            given_options[option.name] = table.choice(option.name, option.choices)
        elif option.kind == "integer":
            given_options[option.name] = table.integer(option.name, int(option.low), int(option.high))
        else:
            given_options[option.name] = table.number(option.name, option.low, option.high)
    table.done(["name", "replan_ms", *(option.name for option in options)])
    return given_options
