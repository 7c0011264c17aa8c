"""`stretto serve --engine ray`: roles of a cluster as actors, a front end in this process, until it is told to stop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.options import need_zeromq
from stretto.core.errors import StrettoError
from stretto.live.scaling_options import JUDGE, LOCAL, SIGNALS, WEBHOOK, ScalingOptions

if TYPE_CHECKING:
    from stretto.api.serve_options import ServeOptions
    from stretto.cli.start_console import StartConsole
    from stretto.live.fleet import WorkerSpec
    from stretto.live.ray.actors import Role
    from stretto.live.ray.placing import Placed

log = logging.getLogger("stretto.cli")

PLACES_S = 10.0  # after which it is said who has no place yet
CONNECT_S = 0.2
END_S = 10.0  # for workers, and beyond the drain of others
MAX_NAME = 60
PORTS = range(20_000, 32_768)  # beyond those of Ray, and below those that systems give to connections
TRIED = 20
MANAGEMENT = ("management_port", "management_grpc_port")


def serve_on_ray(
    values: dict[str, Any],
    options: ServeOptions,
    console: StartConsole,
    reread: Callable[[], tuple[dict[str, Any], ServeOptions]],
) -> bool:
    """True: every request that was taken in had its end. `reread` has everything as it is stated now, for SIGHUP."""
    need_zeromq()
    from stretto.api.roles import serve_front_end
    from stretto.api.run import in_own_loop
    from stretto.api.server import check_free
    from stretto.cli.inputs import key_in
    from stretto.live.ray import placing
    from stretto.live.ray.scaling import Door, Workers

    name, key = values["name"], key_in(values["key_file"])
    if not name or len(name) > MAX_NAME or not name.isprintable() or "/" in name:
        raise StrettoError(f"the name of a service has 1 to {MAX_NAME} characters, and no slash: --name {name[:80]!r}")
    placing.connect(values["address"])
    placed = placing.Placed(name, key or secrets.token_hex(32).encode())
    with contextlib.ExitStack() as stack:
        stack.callback(placed.close, END_S)
        options = _with_workers(options, placing.room())
        _check_gpus(options.service.fleet(), placing.has_gpus())
        scaled: dict[str, tuple[int, range]] = {}
        if options.service.autoscale is not None and options.service.autoscale.actuator == LOCAL:
            options, scaled = _with_all_places(options, options.service.autoscale)
        shown = ("workers", "worker", "device", "threads", "kind")
        values |= {name: getattr(options.service, name) for name in shown}
        endpoint = f"tcp://{placing.own_address()}:{_free_port(placing.own_address())}"
        values |= {name: _free_port(values["management_host"]) for name in MANAGEMENT if values[name] == 0}
        workers, front_ends = _workers(options, endpoint), _front_ends(values, options, endpoint)
        if front_ends:
            check_free(options.listen)  # two services would share the ports, and neither would say so
        by_kind = {kind: [workers[slot] for slot in slots] for kind, (_, slots) in scaled.items()}
        counts = {kind: count for kind, (count, _) in scaled.items()}
        door = stack.enter_context(contextlib.closing(Door(Workers(placed, by_kind, counts))))
        scheduler, standby = _schedulers(values, options, endpoint, placing.own_node(), door.url)
        placed.place(scheduler, is_first=True)
        for listener in MANAGEMENT:
            address = values["management_host"], values[listener]
            what = listener.removesuffix("_port").replace("_", " ")
            tell = partial(console.listens, what, *address, values["tls_key"] is not None)
            threading.Thread(target=_when_it_listens, args=(address, placed, tell), daemon=True).start()
        later = {role.name for kind, roles in by_kind.items() for role in roles[counts[kind] :]}
        first = [*(role for role in workers if role.name not in later), *front_ends]
        for role in first:
            placed.place(role)
        threading.Thread(target=_place_rest, args=(placed, first, standby), daemon=True).start()

        def stated() -> ServeOptions:
            """Everybody is told, wherever it is. What cannot change while it serves is as it was."""
            now, said = reread()
            now |= {name: values[name] for name in (*shown, *MANAGEMENT)}
            said = replace(said, service=options.service)
            config = config_text(now, said)
            configs = dict.fromkeys((role.name for role in front_ends), config)
            scaling = config + _autoscale_text(values, options, door.url)
            missed = placed.reload(configs | dict.fromkeys((scheduler.name, standby.name), scaling))
            if missed:
                log.warning("%s did not take up what was reloaded; it does at its next start", ", ".join(missed))
            return said

        own_front_end = serve_front_end(options, endpoint, placed.key, console, stated, shares_ports=bool(front_ends))
        is_clean = in_own_loop(own_front_end)
        placed.is_over = True
        patience_s = options.drain_grace_s + options.drain_s + END_S
        is_clean = placed.end([role.name for role in front_ends], patience_s) and is_clean
        placed.end([scheduler.name, standby.name], options.drain_s + END_S)
        return is_clean


def _check_gpus(fleet: Sequence[WorkerSpec], are_there: bool) -> None:
    """StrettoError, here and at once: actors that can never start would only wait."""
    from stretto.live.fleet import check_kinds

    asked = [spec.device for spec in fleet if spec.is_gpu]
    if asked and not are_there:
        raise StrettoError(
            f"no node of the Ray cluster has a GPU for a worker on {asked[0]}; add a node that has one, or tell Ray of "
            "it where it did not find it (ray start --num-gpus 1)"
        )
    check_kinds(fleet)  # the scheduler is on this machine, too


def _with_all_places(
    options: ServeOptions, scaling: ScalingOptions
) -> tuple[ServeOptions, dict[str, tuple[int, range]]]:
    """Places for as many workers as there may ever be. Of each kind that is scaled: how many there are at first, and
    which places are its own.
    """
    from stretto.live.fleet import kind_on
    from stretto.repository.read import read_repository

    fleet, repository = options.service.fleet(), read_repository(options.service.repository)
    kinds = [kind_on(spec, repository) for spec in fleet]  # as the scheduler, on this machine, has it
    if len(set(kinds)) < len(kinds):
        raise StrettoError("on Ray workers of a kind that are scaled are written once, as --worker cpu*2")
    bounds = scaling.for_kinds(kinds).kinds
    scaled, places, slot = dict[str, tuple[int, range]](), list[str](), 0
    for kind, spec in zip(kinds, fleet, strict=True):
        most = bounds[kind].most if kind in bounds else spec.workers
        if kind in bounds:
            scaled[kind] = min(max(spec.workers, bounds[kind].least), most), range(slot, slot + most)
        slot += most
        places.append(replace(spec, count=most).text)
    service = replace(options.service, worker=tuple(places), workers=0)
    return replace(options, service=service), scaled


def _with_workers(options: ServeOptions, room: Mapping[str, float]) -> ServeOptions:
    """Where no number is given, there are as many as Ray has room for now, wherever that is."""
    if options.service.worker or options.service.workers:
        return options
    device = options.service.device.partition(":")[0]
    resource = "GPU" if device == "cuda" else "CPU"
    count = int(room.get(resource, 0.0) / (1 if device == "cuda" else options.service.threads))
    if not count:
        raise StrettoError(
            f"no node of the Ray cluster has a free {resource}; add one, or say how many workers you want"
        )
    return replace(options, service=replace(options.service, workers=count, device=device))


def _schedulers(values: Mapping[str, Any], options: ServeOptions, endpoint: str, node: str, webhook: str) -> list[Role]:
    """The one that comes first serves; the other waits for its end. `webhook` scales the workers."""
    from stretto.live.ray.actors import Role

    arguments = ("scheduler", _absolute(options.service.repository), "--bind", endpoint, "--in-turn")
    config, folder = config_text(values, options) + _autoscale_text(values, options, webhook), os.getcwd()
    return [Role(name, arguments, config, node=node, folder=folder) for name in ("scheduler", "standby")]


def _workers(options: ServeOptions, endpoint: str) -> list[Role]:
    from stretto.live.fleet import slot_specs
    from stretto.live.ray.actors import Role

    log_of = ("--log-level", options.log_level, "--log-format", options.log_format)
    return [
        Role(
            f"worker-{slot}",
            ("worker", "--scheduler", endpoint, *_worker(spec), *log_of),
            num_cpus=1 if spec.is_gpu else spec.threads,
            num_gpus=1 if spec.is_gpu else 0,
        )
        for slot, spec in enumerate(slot_specs(options.service.fleet()))
    ]


def _worker(spec: WorkerSpec) -> list[str]:
    """A GPU is the one that Ray gives it, which is the first that it sees."""
    arguments = ["--device", "cuda:0" if spec.is_gpu else spec.device, "--threads", str(spec.threads)]
    return arguments + ([] if spec.kind is None else ["--kind", spec.kind])


def _front_ends(values: Mapping[str, Any], options: ServeOptions, endpoint: str) -> list[Role]:
    from stretto.live.ray.actors import Role

    # Two may be on one machine, which may be this one.
    arguments = ("front-end", _absolute(options.service.repository), "--scheduler", endpoint, "--share-ports")
    return [
        Role(f"front-end-{number}", arguments, config_text(values, options), num_cpus=1)
        for number in range(1, values["front_ends"])
    ]


def _when_it_listens(address: tuple[str, int], placed: Placed, tell: Callable[[], None]) -> None:
    """The scheduler is another process of this machine, and says elsewhere that it listens. A port of 0 is none."""
    while address[1] > 0 and not placed.is_over:
        with contextlib.suppress(OSError):
            socket.create_connection(address, CONNECT_S).close()
            tell()
            return
        time.sleep(CONNECT_S)


def _place_rest(placed: Placed, roles: Sequence[Role], standby: Role) -> None:
    """Who waits for room is told of, once. The standby comes when nobody has to wait for it any more."""
    waiting = placed.waiting(roles, PLACES_S)
    if waiting:
        needs = ", ".join(dict.fromkeys(role.needs for role in waiting))
        log.warning("%d of %d have no place in the Ray cluster yet; each needs %s", len(waiting), len(roles), needs)
    placed.place(standby)
    while waiting:
        waiting = placed.waiting(waiting, PLACES_S)
    log.info("everything has its place in the Ray cluster")


def _absolute(repository: str) -> str:
    return repository if repository == "zoo" or repository.startswith("zoo:") else os.path.abspath(repository)


def _free_port(host: str) -> int:
    """Where the scheduler listens, now and whenever it is started again: none of those that the system gives to
    connections, which might have it in between.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else PORTS.stop
    ports = range(PORTS.start, min(PORTS.stop, first))
    tried = random.SystemRandom().sample(ports, min(TRIED, len(ports)))
    for port in (*tried, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    raise StrettoError(f"there is no free port on {host}")


def config_text(values: Mapping[str, Any], options: ServeOptions) -> str:
    """A configuration file that says what these options do, for a process that is started elsewhere."""
    from stretto.cli.serve_config import KEYS

    service = options.service
    tables: dict[str, dict[str, Any]] = {
        table: {key: values[key] for key in keys if values.get(key) is not None} for table, keys in KEYS.items()
    }
    tables["workers"].pop("executor", None)
    tables["listen"].pop("front_ends", None)  # each is a process of its own
    tables["limits"] = asdict(options.listen.limits)
    tables["planner"] = {"name": service.planner, **service.planner_options}
    if values["replan_ms"] is not None:
        tables["planner"]["replan_ms"] = values["replan_ms"]
    lines = []
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(value)}" for key, value in entries.items()]
    return "\n".join(lines) + "\n"


def _autoscale_text(values: Mapping[str, Any], options: ServeOptions, webhook: str) -> str:
    """Who is told of the number of workers is the process that placed them, where nobody else is named."""
    scaling = options.service.autoscale
    if scaling is None:
        return ""
    option_values = {name: value for name, value in asdict(scaling.options).items() if name != "kinds"}
    entries = {"workers": values["autoscale"], **option_values, "actuator": scaling.actuator}
    entries["by"] = JUDGE if scaling.follows_judge else SIGNALS
    if scaling.actuator == LOCAL:
        entries |= {"actuator": WEBHOOK, "webhook": webhook}
    elif scaling.actuator == WEBHOOK:
        if scaling.token:
            raise StrettoError("the webhook of a service on Ray is called without a token; put a secret in its path")
        entries["webhook"] = scaling.webhook
    if scaling.accuracy is not None:
        entries["accuracy"] = scaling.accuracy
    return "\n".join(["[autoscale]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]) + "\n"


def _toml(value: Any) -> str:
    """Strings of JSON are strings of TOML."""
    if isinstance(value, Path):
        value = os.path.abspath(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
