"""The roles of a cluster: a scheduler that front ends and workers on any machine connect to, and such a front end.

The scheduler has the management listeners and is scraped; front ends have those for inference.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stretto.api.beginning import GC_THRESHOLDS
from stretto.api.front import FrontOptions, FrontServer
from stretto.api.front_counts import FrontCounts
from stretto.api.reload import Reload
from stretto.api.run import Console, Elsewhere, serve
from stretto.api.serve_options import Reread, ServeOptions
from stretto.api.server import listening_socket
from stretto.core.errors import StrettoError
from stretto.live.cluster.joining import Joining
from stretto.live.cluster.keys import checked_endpoint, keys_from
from stretto.live.cluster.remote import RemoteExecutor
from stretto.live.cluster.roster import Roster
from stretto.live.cluster.scheduling import Scheduling
from stretto.live.cluster.wire import Wires
from stretto.repository.read import read_repository

if TYPE_CHECKING:
    from stretto.api.plane import Plane
    from stretto.live.service import Service

log = logging.getLogger("stretto.api")


async def serve_scheduler(
    options: ServeOptions, bind: str, key: bytes | None, console: Console, reread: Reread | None = None
) -> bool:
    """Until it is told to stop. True: every query that was taken in had its end. `reread` has the options as they are
    stated now, for SIGHUP.
    """
    address = checked_endpoint(bind, key)
    options = _for_scheduler(options)
    roster = Roster(options.service.fleet)
    elsewhere = Elsewhere(
        lambda plane: ClusterFronts(plane, roster, address, key), partial(RemoteExecutor, roster=roster)
    )
    return await serve(options, console, reread and (lambda: _for_scheduler(reread())), elsewhere)


def _for_scheduler(options: ServeOptions) -> ServeOptions:
    """What a worker may hold depends on its machine, not on this one."""
    service = options.service
    rss_bytes = 0 if service.worker_rss_bytes is None else service.worker_rss_bytes
    return replace(options, service=replace(service, worker_rss_bytes=rss_bytes))


def made_ready(options: ServeOptions) -> None:
    """What takes long at a start and can be done before: all that is imported and compiled, and the files read once."""
    import stretto.live.service
    import stretto.sim.ports
    import stretto.twin.live  # noqa: F401
    from stretto.api.bounds import rehearse_bounds
    from stretto.live.rehearsal import rehearse

    rehearse(has_fronts=True)
    rehearse_bounds()
    read_repository(options.service.repository)


class ClusterFronts:
    """The front ends of a scheduler, as its server sees them: they come and go by themselves."""

    def __init__(self, plane: Plane, roster: Roster, address: tuple[str, int], key: bytes | None):
        self.addresses: dict[str, tuple[str, int]] = {}  # where it listens by now
        self._address = address
        self._plane, self._roster, self._key = plane, roster, key
        self._service: Service | None = None
        self._wires: Wires | None = None
        self._scheduling: Scheduling | None = None

    async def start(self) -> None:
        """StrettoError where the address cannot be had. It is opened when there is something to serve."""
        listening_socket(*self._address).close()

    async def opened_all(self) -> None: ...

    def progress(self, step: str, share: float) -> None: ...

    def serve(self, service: Service) -> None:
        if service.session.looks_at_evidence:
            raise StrettoError(
                f"planner {service.options.planner} looks at what queries hold, and the scheduler of a cluster never "
                "sees that: choose another (--planner), or leave out --data-aware"
            )
        service.sees_no_inputs()
        self._service = service
        host, port = self._address
        self._wires = Wires(keys_from(self._key))
        endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._scheduling = Scheduling(service, self._roster, self._wires, endpoint, self._plane.control.statistics)
        self._plane.fronts = self._counts
        self.addresses["cluster"] = self._address

    def _counts(self) -> dict[str, FrontCounts]:
        assert self._scheduling is not None
        fronts = self._scheduling.desk.fronts.values()
        return {front.name: replace(FrontCounts.from_json(front.counts), is_listening=True) for front in fronts}

    def leave(self) -> None:
        if self._scheduling is not None:
            self._scheduling.desk.is_leaving = True
            self._scheduling.desk.look()

    async def reload(self, options: ServeOptions) -> None:
        """Front ends have their own tokens and certificates; a partition is the scheduler's."""
        share, moves = options.service.share, None if self._service is None else self._service.moves
        if moves is None or share is None:
            return
        if share.partition.version < moves.share.partition.version:
            log.warning("the file of the partition is older than what is in force, which stays")
        else:
            await moves.take_up(share.partition)

    async def stop(self) -> None:
        await asyncio.sleep(0)  # what ended in this turn is told first
        if self._scheduling is not None:
            self._scheduling.close()
        if self._wires is not None:
            self._wires.close()


async def serve_front_end(
    options: ServeOptions,
    scheduler: str,
    key: bytes | None,
    console: Console,
    reread: Reread | None = None,
    *,
    shares_ports: bool = False,
) -> bool:
    """Until it is told to stop. True: every request that was taken in had its end. `scheduler` may be several, with
    commas between: each serves applications of its own. `reread` has the options as they are stated now, for SIGHUP.
    `shares_ports`: other front ends of this machine listen there, too, and the system shares connections out.
    """
    schedulers = [each.strip() for each in scheduler.split(",")]
    for each in schedulers:
        checked_endpoint(each, key)
    if not options.listen.rates.are_off or options.listen.shared_memory:
        raise StrettoError(
            "limits of clients and shared memory with them are for a server of one front end; leave them out here"
        )
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # in another thread they are not ours
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
    repository = await asyncio.to_thread(read_repository, options.service.repository)
    wires = Wires(keys_from(key))
    name = f"{socket.gethostname()}/{secrets.token_hex(3)}"
    joinings = [Joining(wires, name) for _ in schedulers]
    asking = options.service.repository, options.listen, name, options.traces
    stores = [joining.store for joining in joinings]
    front = FrontServer(FrontOptions(*asking), repository, *stores, shares_ports=shares_ports)
    reload = Reload(options, front.listeners, reread, asked.set)
    if reread is not None:
        loop.add_signal_handler(signal.SIGHUP, reload.signalled)
    try:
        await front.start()
        console.listening(front.listeners)
        for endpoint, joining, engine in zip(schedulers, joinings, front.service.engines, strict=True):
            joining.join(endpoint, engine, engine)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await asked.wait()
        options = reload.options
        if options.drain_grace_s > 0:
            front.plane.is_told_to_leave = front.plane.wants_to_leave = True
            log.info("not ready any more; queries are taken for another %g s", options.drain_grace_s)
            await asyncio.sleep(options.drain_grace_s)
        log.info("going down: nothing new is taken, what waits is finished")
        is_clean = await front.service.drain(options.drain_s)
    finally:
        await front.stop()
        for joining in joinings:
            joining.close()
        wires.close()
    return is_clean
