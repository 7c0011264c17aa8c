"""Ray clusters of several real nodes on this machine, for the benchmarks and tests of serving on Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serve_peers import free_port
from benchmarks.serving import family, on_core
from stretto.cli.started import Started, started_server

STORE_BYTES = 80_000_000  # the least; no query passes there
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
GONE_S = 20.0
LISTENS = "0A"  # a socket, in /proc/net/tcp


class Nodes:
    """The head has no room for workers, only for what needs none, unless it is told to have."""

    def __init__(self, cpus: Sequence[int], gpus: int = 0, head_cpus: int = 0) -> None:
        """A head, and a node for each number of processors, with so many GPUs as far as Ray knows."""
        os.environ.update(QUIET)
        from ray.cluster_utils import Cluster

        head = {"num_cpus": head_cpus, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._started: set[int] = set()
        self.nodes = [self.add(count, gpus) for count in cpus]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int, gpus: int = 0) -> Any:
        node = self._cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=STORE_BYTES, wait=True)
        self.processes()
        return node

    def processes(self) -> set[int]:
        """Of all nodes that were ever there, and all that these started."""
        nodes = self._cluster.list_all_nodes()
        self._started |= {pid for node in nodes for pid in processes_of(node)}
        return {pid for pid in self._started if is_alive(pid)}

    def kill(self, node: Any) -> None:
        """As a machine that loses its power: all of it at once, and nobody is told."""
        pids = processes_of(node)
        self._started.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        started = self.processes() | self._started
        self._cluster.shutdown()
        end = time.monotonic() + GONE_S
        while any(is_alive(pid) for pid in started) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in started:
            if is_alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def ray_nodes(cpus: Sequence[int], core: int | None = None, gpus: int = 0, head_cpus: int = 0) -> Iterator[Nodes]:
    """All of them on one core, where one is named."""
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {sorted(cores)[core % len(cores)]})
    try:
        nodes = Nodes(cpus, gpus, head_cpus)
    finally:
        os.sched_setaffinity(0, cores)
    try:
        yield nodes
    finally:
        nodes.close()


@contextlib.contextmanager
def on_ray(
    cpus: list[int], arguments: list[str], core: int | None = None, head_cpus: int = 0
) -> Iterator[tuple[Nodes, Started]]:
    """`stretto serve ARGUMENTS --engine ray` on nodes of this machine; all on one core, where one is named."""
    with ray_nodes(cpus, core, head_cpus=head_cpus) as nodes:
        given = [*arguments, "--engine", "ray", "--address", nodes.address, "--log-level", "warning"]
        given += ["--management-port", str(free_port())]
        with started_server(given, prefix=[] if core is None else on_core(core)) as server:
            server.addresses["management"] = f"127.0.0.1:{given[-1]}"
            yield nodes, server


def processes_of(node: Any) -> list[int]:
    """All of one node: what Ray started there, and what that started."""
    kinds = node.all_processes.values()
    return [pid for kind in kinds for started in kind for pid in family(started.process.pid)]


def is_alive(pid: int) -> bool:
    """One that ended, and waits for somebody to ask how, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descriptors_by_kind(pid: int, but_port: int) -> Counter[str]:
    """What a process holds: pipes and others; connections that came to that port are its clients', and not counted."""
    clients, found = set(_sockets(lambda state, port: state != LISTENS and port == but_port)), Counter[str]()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target not in clients:
                found["pipes" if target.startswith("pipe:") else "others"] += 1
    return found


def _sockets(is_meant: Callable[[str, int], bool]) -> Iterator[str]:
    """As descriptors name them, by their state and own port."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if is_meant(fields[3], int(fields[1].rpartition(":")[2], 16)):
                yield f"socket:[{fields[9]}]"


def listener(pids: Sequence[int], port: int) -> int:
    """Which of them listens there."""
    inodes = set(_sockets(lambda state, own: state == LISTENS and own == port))
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in inodes:
                    return pid
    raise LookupError(f"none of them listens on port {port}")


def roles(pids: Sequence[int] | set[int], role: str) -> list[int]:
    """Those of them that run `stretto ROLE`."""
    found = []
    for pid in sorted(pids):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"stretto" in words and role.encode() in words[words.index(b"stretto") :][1:2] and is_alive(pid):
                found.append(pid)
    return found
