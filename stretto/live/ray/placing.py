"""Places the roles of a service in a Ray cluster, and ends them all.

The actors belong to the process that placed them: when that ends, however it ends, Ray ends them. The scheduler is on
the node of that process, at an address that stays the same when it is started again; workers and front ends may be
anywhere that has room for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.core.errors import StrettoError
from stretto.live.ray.actors import Role, RoleActor

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise StrettoError("serving on Ray needs Ray: pip install 'stretto[ray]'") from None

log = logging.getLogger("stretto.live.ray")

NAMESPACE = "stretto"
REACH_S = 3.0
ANSWER_S = 10.0  # of an actor that is in its place
PLACE_S = 3.0  # at the end: who does not answer by then has no place, and nothing to finish
NOT_THERE = (
    "there is no Ray cluster {where}; start one with ray start --head (and ray start --address HOST:6379 on "
    "further machines), or name one with --address HOST:6379"
)


def connect(address: str | None) -> None:
    """StrettoError, within seconds, where no cluster is there."""
    if address is not None and "://" in address:
        raise StrettoError(
            f"{address[:80]!r} is Ray's address for remote clients; run stretto serve on a machine of the cluster and "
            "leave the address out, or give the head's as HOST:6379"
        )
    known = address or os.environ.get("RAY_ADDRESS") or _of_this_machine()
    if known is None:
        raise StrettoError(NOT_THERE.format(where="on this machine"))
    host, _, port = known.rpartition(":")
    where = f"at {known[:80]}"
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, ValueError, OverflowError):
        raise StrettoError(NOT_THERE.format(where=where)) from None
    try:
        ray.init(address=known, namespace=NAMESPACE, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StrettoError(f"the Ray cluster {where} cannot be joined from this machine: {reason}") from None


def _of_this_machine() -> str | None:
    """Ray finds it by its processes. It would wait for minutes for one that is gone."""
    from ray._private import services

    addresses = sorted(services.find_gcs_addresses())
    return str(addresses[0]) if addresses else None


def own_address() -> str:
    """By which other nodes know this one."""
    return str(ray.util.get_node_ip_address())


def own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def room() -> dict[str, float]:
    """Free at present, by Ray's names."""
    return dict(ray.available_resources())


def has_gpus() -> bool:
    """Whether any node has one, free or not."""
    return ray.cluster_resources().get("GPU", 0.0) >= 1


class Placed:
    """The roles of one service, by name."""

    def __init__(self, service: str, key: bytes):
        self.key = key
        self._service = service
        self._actors: dict[str, Any] = {}
        self._seen: set[str] = set()  # who has answered from its place
        self._lock = threading.Lock()  # some are placed beside the serving
        self.is_over = False  # then nobody is placed any more

    def place(self, role: Role, is_first: bool = False) -> None:
        """It starts when and where there is room. Nothing happens where it is placed already, or the service is ended.
        The first one of a service says whether its name is free.
        """
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if role.node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(role.node, soft=False)
        actor = ray.remote(RoleActor).options(
            name=f"{self._service}/{role.name}",
            num_cpus=role.num_cpus,
            num_gpus=role.num_gpus,
            max_restarts=-1,
            **options,
        )
        try:
            with self._lock:
                if not self.is_over and role.name not in self._actors:
                    self._actors[role.name] = actor.remote(role, self.key)
        except ValueError:  # its name is taken
            if not is_first:
                raise
            raise StrettoError(
                f"a service named {self._service!r} runs already in this Ray cluster; stop it, or give this one "
                "another name (--name)"
            ) from None

    def waiting(self, roles: Sequence[Role], patience_s: float) -> list[Role]:
        """Those that have no place yet. None where the service is ended."""
        with self._lock:
            if self.is_over:
                return []
            asked = {self._actors[role.name].state.remote(): role for role in roles if role.name in self._actors}
        try:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=patience_s) if asked else ([], [])
        except Exception:  # of whatever kind, while the connection to Ray is being closed
            if self.is_over:
                return []
            raise
        self._seen |= {asked[reference].name for reference in ready}
        return [role for reference, role in asked.items() if reference not in ready]

    def reload(self, configs: Mapping[str, str]) -> list[str]:
        """By name. Those that did not take theirs up within seconds: they have no place at present."""
        with self._lock:
            placed = {name: self._actors[name] for name in configs if name in self._actors}
            asked = {actor.reload.remote(configs[name]): name for name, actor in placed.items()}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        taken_up = set()
        for reference in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(reference)
                taken_up.add(asked[reference])
        return [name for name in asked.values() if name not in taken_up]

    def end(self, names: Sequence[str], patience_s: float) -> bool:
        """All of them at once; who has not ended by then is killed. True: each ended by itself."""
        with self._lock:
            unseen = [name for name in names if name in self._actors and name not in self._seen]
            asked = {self._actors[name].state.remote(): name for name in unseen}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=PLACE_S) if asked else ([], [])
        without_place = set(unseen) - {asked[reference] for reference in ready}
        with self._lock:
            actors = {name: self._actors.pop(name) for name in names if name in self._actors}
            self._seen -= actors.keys()
        stopping = [actor.stop.remote(patience_s) for name, actor in actors.items() if name not in without_place]
        ended, _ = ray.wait(stopping, num_returns=len(stopping), timeout=patience_s + ANSWER_S) if stopping else ([], 0)
        is_clean = len(ended) == len(stopping)
        for reference in ended:
            try:
                is_clean = bool(ray.get(reference)) and is_clean
            except ray.exceptions.RayError:  # it was lost before, with whatever it had
                is_clean = False
        for actor in actors.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor, no_restart=True)
        return is_clean

    def close(self, patience_s: float) -> None:
        """Whatever is still there, and the connection to Ray with it."""
        self.is_over = True
        self.end(tuple(self._actors), patience_s)
        ray.shutdown()
