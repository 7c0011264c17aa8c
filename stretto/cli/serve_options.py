"""What a server is told, from its command line and its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.options import memory_bytes
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.api.serve_options import ServeOptions
    from stretto.cli.serve_config import ServeConfig
    from stretto.live.options import ServiceOptions
    from stretto.live.scaling_options import ScalingOptions

SIZES = {  # options in megabytes, and the limits that they set
    "max_body_mb": ("body_bytes", "inflated_bytes"),
    "max_message_mb": ("message_bytes",),
    "in_flight_mb": ("memory_bytes",),
}


def with_config(
    values: dict[str, Any], is_given: Callable[[str], bool], config: Path | None
) -> tuple[dict[str, Any], ServeConfig]:
    """The values of the options, and what only the file can say; the command line goes first."""
    from stretto.cli.serve_config import read_serve_config

    said = read_serve_config(config)
    values |= {name: value for name, value in said.values.items() if not is_given(name)}
    if values["worker"] and values["workers"]:  # two ways to say the same: the one that was said nearer by holds
        by_list, by_number = (2 * is_given(name) + (name in said.values) for name in ("worker", "workers"))
        if by_list > by_number:
            values["workers"] = 0
        elif by_number > by_list:
            values["worker"] = None
    if values["planner"] != said.values.get("planner"):
        said = replace(said, planner_options={})  # they were written for another one
    given = {limit for option, limits in SIZES.items() if is_given(option) for limit in limits}
    said = replace(said, limits={name: value for name, value in said.limits.items() if name not in given})
    return values, said


def serve_options(values: dict[str, Any], said: ServeConfig) -> ServeOptions:
    """From the values of the options, by name, and what only the file can say."""
    from stretto.api.limits import Limits
    from stretto.api.rates import RateLimits
    from stretto.api.serve_options import ServeOptions
    from stretto.api.server import Listen
    from stretto.cli.inputs import tokens_in
    from stretto.live.options import ServiceOptions
    from stretto.live.recording import RecordOptions
    from stretto.planners.registry import DEFAULT_PLANNER

    service = ServiceOptions(
        values["repository"],
        planner_options=said.planner_options,
        only=tuple(values["variant"] or ()),
        worker=tuple(values["worker"] or ()),
        replan_s=None if values["replan_ms"] is None else values["replan_ms"] / 1000,
        policies=values["policies"],
        plans=values["plans"],
        is_fresh=values["fresh"],
        judges=not values["no_judging"],
        data_aware=values["data_aware"],
        worker_memory_bytes=memory_bytes(values["worker_memory_mb"]),
        planner=values["planner"] or DEFAULT_PLANNER,
        **{name: values[name] for name in ("workers", "executor", "threads", "device", "kind")},
        worker_rss_bytes=None if values["worker_rss_mb"] is None else round(values["worker_rss_mb"] * 1e6),
        tells_failures=values["tell_failures"],
        **{name: values[name] for name in ("hang_s", "load_s", "reload_s", "ready_all")},
        autoscale=_autoscale(values, said),
    )
    _check_workers(service, said)
    sizes = {limit: round(values[option] * 1e6) for option, limits in SIZES.items() for limit in limits}
    ports = ("http_port", "grpc_port", "management_port", "management_grpc_port")
    listen = Listen(
        host=values["host"],
        management_host=values["management_host"],
        tokens=tokens_in(values["token_file"]),
        management_tokens=tokens_in(values["management_token_file"]),
        tls_certificate=_text(values["tls_certificate"]),
        tls_key=_text(values["tls_key"]),
        limits=Limits(**(sizes | said.limits)),
        shared_memory=values["shared_memory"],
        rates=RateLimits(values["client_requests"], values["client_worker_ms"], values["limit_by"]),
        **{name: _port(values[name]) for name in ports},
    )
    record_options = RecordOptions(
        overwrite=values["record_overwrite"],
        part_bytes=round(values["record_file_mb"] * 1e6),
        total_bytes=round(values["record_total_mb"] * 1e6),
    )
    return ServeOptions(
        service,
        listen,
        drain_s=values["drain_s"],
        drain_grace_s=values["drain_grace"],
        traces=values["traces"],
        record=values["record"],
        record_options=record_options,
        log_level=values["log_level"],
        log_format=values["log_format"],
        front_ends=values["front_ends"],
    )


def _check_workers(service: ServiceOptions, said: ServeConfig) -> None:
    """ConfigError with its line where a worker of the file is named for a variant that the repository does not have."""
    table, fleet = said.workers, service.fleet()
    if table is None or list(service.worker) != said.values.get("worker") or not any(each.variants for each in fleet):
        return
    from stretto.live.fleet import check_variants
    from stretto.repository.read import read_repository

    repository = read_repository(service.repository)
    for position, spec in enumerate(fleet):
        try:
            check_variants((spec,), repository)
        except StrettoError as error:
            table.fail(str(error), "worker", position)


def _autoscale(values: dict[str, Any], said: ServeConfig) -> ScalingOptions | None:
    from stretto.cli.inputs import tokens_in
    from stretto.live.scaling_options import BY, JUDGE, LOCAL, SIGNALS, WEBHOOK, ScalingOptions, read_bounds
    from stretto.planning.autoscale_options import AutoscaleOptions

    if not values["autoscale"]:
        for name in ("autoscale_actuator", "autoscale_by", "autoscale_webhook", "autoscale_accuracy"):
            if values[name] is not None:
                raise StrettoError(f"--{name.replace('_', '-')} is for a fleet that is scaled; give --autoscale 1:8")
        return None
    by = values["autoscale_by"] or SIGNALS
    if by not in BY:
        raise StrettoError(f"a fleet is not scaled by {by[:40]!r}; there are {', '.join(BY)}")
    webhook, tokens = values["autoscale_webhook"] or "", tokens_in(said.autoscale_token_file)
    return ScalingOptions(
        tuple(read_bounds(text) for text in values["autoscale"]),
        values["autoscale_actuator"] or (WEBHOOK if webhook else LOCAL),
        webhook,
        tokens[0] if tokens else "",
        values["autoscale_accuracy"],
        AutoscaleOptions(period_s=values["autoscale_period_s"], **said.autoscale),
        by == JUDGE,
    )


def _text(path: Path | None) -> str | None:
    """A file that is read later, but missed now."""
    if path is not None and not path.is_file():
        raise StrettoError(f"{path}: there is no such file")
    return None if path is None else str(path)


def _port(number: int) -> int | None:
    return None if number < 0 else number
