"""`stretto worker`: a worker of a cluster, from its start until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.core.address import host_and_port
from stretto.core.errors import StrettoError
from stretto.live.cluster.agent import Agent
from stretto.live.cluster.keys import checked_endpoint, keys_from
from stretto.live.cluster.links import Line
from stretto.live.cluster.tensors import TensorDoor
from stretto.live.cluster.wire import Wires
from stretto.live.face.link import Peer
from stretto.live.fleet import WorkerSpec
from stretto.live.terminal import Terminal
from stretto.repository.machine import machine_kind, usable_accelerators

log = logging.getLogger("stretto.cluster")

LEAVE_S = 8.0  # for what it was given, when it is told to end; whoever tells it may wait for 10


def work(
    scheduler: str,
    key: bytes | None,
    *,
    device: str = "cpu",
    threads: int = 1,
    kind: str | None = None,
    name: str = "",
    memory_bytes: int = 0,
    repository: str | None = None,
) -> None:
    """Until SIGTERM or SIGINT, and then until it has finished what it was given.

    `memory_bytes` is what the process with the models may hold; 0: anything. `repository` is the folder
    where this machine has what the scheduler reads from its own.
    """
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    checked_endpoint(scheduler, key)
    spec = WorkerSpec(device, 1, threads, kind, memory_bytes)
    spec = replace(spec, kind=kind or own_kind(device))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_work(scheduler, key, spec, name or own_name(device), repository))


def own_kind(device: str) -> str:
    """Of this machine's processor, or of that GPU."""
    family, _, number = device.partition(":")
    if family == "cpu":
        return machine_kind()
    usable = usable_accelerators()
    if int(number or 0) >= len(usable):
        raise StrettoError(f"there is no {device} on this machine; name the kind whose profiles hold there (--kind)")
    name = usable[int(number or 0)]
    if name is None:
        raise StrettoError(
            f"this machine has GPUs of several kinds, and which one {device} is depends on CUDA; name the kind whose "
            "profiles hold there (--kind), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return machine_kind(name)


def own_name(device: str) -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{device}"


async def _work(scheduler: str, key: bytes | None, spec: WorkerSpec, name: str, repository: str | None) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    wires = Wires(keys_from(key))
    root = None if repository is None else Path(repository).resolve()
    agent = Agent(loop, spec.device, spec.threads, spec.memory_bytes, root)

    def ask() -> None:
        agent.is_hurried = asked.is_set()
        asked.set()

    terminal = Terminal()

    def hung_up() -> None:
        if terminal.is_gone:
            ask()
        else:
            log.info("SIGHUP: a worker has nothing to read anew, and goes on")

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread: somebody else's
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        loop.add_signal_handler(signal.SIGHUP, hung_up)
    agent.door = door = TensorDoor(wires, f"tcp://{_quoted(own_address(scheduler))}:*", agent.brought)

    def opening() -> dict[str, Any]:
        return {
            "role": "worker",
            "name": name,
            "device": spec.device,
            "threads": spec.threads,
            "kind": spec.kind,
            "endpoint": door.endpoint,
            "holds": agent.holds,
        }

    def opened(line: Line, welcome: dict[str, Any]) -> Peer:
        agent.linked(line, welcome)
        return agent

    line = Line(wires, scheduler, opening, opened)
    try:
        await asked.wait()
        await agent.leave(LEAVE_S)
    finally:
        line.close()
        await agent.stop()
        door.close()
        wires.close()


def own_address(scheduler: str) -> str:
    """Of this machine, as the scheduler's sees it: nothing is sent for that."""
    host, port = host_and_port(scheduler)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise StrettoError(f"{host} cannot be reached from here ({error.strerror}); check --scheduler") from None


def _quoted(host: str) -> str:
    return f"[{host}]" if ":" in host else host
