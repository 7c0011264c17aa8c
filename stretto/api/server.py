"""The listeners of a service, their start and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stretto.api.access import Access
from stretto.api.certificates import Certificate, load_certificate
from stretto.api.descriptors import connection_shares, raise_limit, take_ahead
from stretto.api.http.app import App
from stretto.api.limits import Limits
from stretto.api.metrics import Metrics
from stretto.api.plane import Plane
from stretto.api.rates import BY_TOKEN, RateLimits, Rates
from stretto.core.address import is_loopback
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.api.grpc.reads import Reads
    from stretto.api.handover import Handover
    from stretto.api.http.door import PlainDoor, TlsDoor
    from stretto.api.http.traffic import Traffic

log = logging.getLogger("stretto.api")

BACKLOG = 2048
MANAGEMENT_GRPC = "management grpc"
SWEEP_S = 5.0
CLOSING_S = 2.0  # for answers that are still being written


@dataclass(frozen=True)
class Listen:
    """Where to listen. A port of 0 takes a free one; None leaves that listener out."""

    host: str = "127.0.0.1"
    http_port: int | None = 8080
    grpc_port: int | None = 8081
    management_host: str = "127.0.0.1"
    management_port: int | None = 8082
    management_grpc_port: int | None = 8083
    tokens: tuple[str, ...] = ()  # any of them is right; none: everybody may call
    management_tokens: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    limits: Limits = field(default_factory=Limits)
    rates: RateLimits = field(default_factory=RateLimits)
    shared_memory: bool = False  # clients may name segments of this machine's shared memory

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise StrettoError("TLS needs both a certificate and its key")
        if not self.rates.are_off and self.rates.by == BY_TOKEN and not self.tokens:
            raise StrettoError("clients can be limited by token only where they have tokens; give --token-file")
        if self.limits.message_bytes > self.limits.memory_bytes // 2:
            raise StrettoError(
                "half of the bytes in flight are for gRPC, and must hold a message: "
                "give more (--in-flight-mb), or allow shorter messages (--max-message-mb)"
            )
        if self.shared_memory and not sys.platform.startswith("linux"):
            raise StrettoError("shared memory with clients is there on Linux only; leave out --shared-memory")
        if self.shared_memory and not is_loopback(self.host) and not self.tokens:
            raise StrettoError(
                f"this machine's shared memory would be open to other machines on {self.host}; "
                "give inference a token (--token-file), or leave it on 127.0.0.1"
            )
        if not is_loopback(self.management_host) and not self.management_tokens:
            raise StrettoError(
                f"management would be open to other machines on {self.management_host}; "
                "give it a token (--management-token-file), or leave it on 127.0.0.1"
            )


class Listeners:
    """HTTP and gRPC over one data plane, twice: for inference and for management.

    `shares_ports`: other processes listen on the same ports, and the system shares connections out among them; with
    `handover` they put that right.
    """

    def __init__(self, plane: Plane, listen: Listen, shares_ports: bool = False, handover: Handover | None = None):
        self.listen = listen
        self._shares_ports = shares_ports
        self._handover = handover  # of connections for inference over HTTP
        self.plane = plane
        self.addresses: dict[str, tuple[str, int]] = {}
        self._metrics = Metrics(self.plane)
        # With shared memory, a web page of another site could have this machine's memory written to.
        self._inference = Access(listen.tokens, listen.host if listen.shared_memory else None)
        self._management = Access(listen.management_tokens, listen.management_host)
        self._certificate: Certificate | None = None
        if listen.tls_certificate is not None and listen.tls_key is not None:
            self._certificate = Certificate(listen.tls_certificate, listen.tls_key)
        plane.rates = self._rates(listen)
        self._http: list[tuple[PlainDoor | TlsDoor, Traffic]] = []
        self._grpc: list[Any] = []
        self._reads: Reads | None = None
        self._sweeps: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """All or none: StrettoError where an address cannot be had."""
        listen = self.listen
        regions = 2 * listen.limits.shared_memory_regions if listen.shared_memory else 0
        most = raise_limit()
        shares = connection_shares(listen.limits.connections, most - regions)
        take_ahead(min(shares.descriptors + regions, most))
        if shares.http < listen.limits.connections:
            log.warning(
                "at most %d HTTP and %d gRPC connections are taken: this system allows no more open files (ulimit -n)",
                *(shares.http, shares.grpc),
            )
        inference = App(self.plane, access=self._inference)
        management = App(self.plane, is_management=True, access=self._management, metrics=self._metrics.text)
        try:
            await self._start_http("http", inference, listen.host, listen.http_port, shares.http)
            await self._start_grpc("grpc", listen.host, listen.grpc_port, self._inference, shares.grpc)
            host, most = listen.management_host, shares.management
            await self._start_http("management", management, host, listen.management_port, most)
            await self._start_grpc(MANAGEMENT_GRPC, host, listen.management_grpc_port, self._management, most)
        except BaseException:
            await self.stop()
            raise

    async def reload(self, listen: Listen) -> None:
        """Tokens, certificate and limits of clients as they are stated now. StrettoError where they cannot be had; then
        all stays as it was. What else is stated there waits for the next start.
        """
        now = self.listen
        for before, after in ((now.tokens, listen.tokens), (now.management_tokens, listen.management_tokens)):
            if bool(before) != bool(after):
                raise StrettoError("tokens can be replaced, but whether they are needed is decided at the start")
        if (now.tls_certificate is None) != (listen.tls_certificate is None):
            raise StrettoError("a certificate can be replaced, but whether TLS is served is decided at the start")
        if self._certificate is not None and listen.tls_certificate is not None and listen.tls_key is not None:
            paths = listen.tls_certificate, listen.tls_key
            self._certificate.current = await asyncio.to_thread(load_certificate, *paths)
        self._inference.replace(listen.tokens)
        self._management.replace(listen.management_tokens)
        if listen.rates != now.rates:  # else what clients have used counts on
            self.plane.rates = self._rates(listen)
        self.listen = listen

    @property
    def connections(self) -> int:
        """Of HTTP, that are open."""
        return sum(len(traffic.connections) for _, traffic in self._http)

    @staticmethod
    def _rates(listen: Listen) -> Rates | None:
        return None if listen.rates.are_off else Rates(listen.rates, listen.limits.client_ids)

    async def stop(self) -> None:
        """Answers that are on their way go out; then every connection is closed."""
        for task in self._sweeps:
            task.cancel()
        if self._handover is not None:
            self._handover.stop()
        for door, traffic in self._http:
            door.close()
            for connection in list(traffic.connections):
                connection.shutdown()
        end = asyncio.get_running_loop().time() + CLOSING_S
        for _, traffic in self._http:
            while traffic.is_answering and asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.01)
            for connection in list(traffic.connections):
                connection.transport.close()
        for server in self._grpc:
            await server.stop(CLOSING_S)
        for door, traffic in self._http:
            traffic.crowd.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(door.wait_closed(), CLOSING_S)

    async def _start_http(self, name: str, app: App, host: str, port: int | None, connections: int) -> None:
        if port is None:
            return
        from stretto.api.http.door import PlainDoor, TlsDoor
        from stretto.api.http.protocol import Connection
        from stretto.api.http.traffic import Traffic, sweep

        loop = asyncio.get_running_loop()
        handover = self._handover if name == "http" else None
        traffic = Traffic(connections, handover=handover, makes_room=name == "management")
        listening = listening_socket(host, port, self._shares_ports)

        def make() -> Connection:
            return Connection(traffic, loop, app, self.plane)

        door: PlainDoor | TlsDoor
        if self._certificate is None:
            door = PlainDoor(listening, make)
        else:
            context = self._certificate.http_context()
            door = TlsDoor(listening, context, make, traffic, self.plane, self.listen.limits)
        self.addresses[name] = listening.getsockname()[:2]
        self._http.append((door, traffic))
        await door.open(BACKLOG)
        if handover is not None:
            handover.start(door.adopt)
        self._sweeps.append(loop.create_task(sweep(traffic.connections, SWEEP_S)))

    async def _start_grpc(self, name: str, host: str, port: int | None, access: Access, connections: int) -> None:
        if port is None:
            return
        from stretto.api.grpc.reads import Reads
        from stretto.api.grpc.server import bind, make_server

        # gRPC writes a page about an address that it cannot have. So we ask first, and say it in a line.
        listening_socket(host, port, self._shares_ports).close()
        limits, is_management = replace(self.listen.limits, connections=connections), name == MANAGEMENT_GRPC
        if self._reads is None:
            self._reads = Reads(limits)
        server = make_server(
            self.plane,
            limits=limits,
            is_management=is_management,
            access=access,
            reads=self._reads,
            shares_port=self._shares_ports,
        )
        tls = None if self._certificate is None else self._certificate.grpc_credentials()
        try:
            bound = bind(server, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls)
        except OSError as error:
            raise StrettoError(f"{error} Choose another port, or 0 for any.") from None
        await server.start()
        self._grpc.append(server)
        self.addresses[name] = (host, bound)


def check_free(listen: Listen) -> None:
    """StrettoError where somebody else has one of the ports for inference."""
    for port in (listen.http_port, listen.grpc_port):
        if port:
            listening_socket(listen.host, port).close()


def listening_socket(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """Bound and ready; a clear error where the address is taken."""
    listening = bound_socket(host, port, is_shared, BACKLOG)
    listening.setblocking(False)
    return listening


def bound_socket(host: str, port: int, is_shared: bool = False, backlog: int = 0) -> socket.socket:
    """It listens where there is a backlog. `is_shared`: others of this user may have the address, too, if they say the
    same.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise StrettoError(f"{host} is no address of this machine; use 127.0.0.1") from None
    family, kind, protocol, _, address = addresses[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind(address)
        if backlog:
            listening.listen(backlog)
    except OSError as error:
        listening.close()
        reason = error.strerror or "the address cannot be used"
        raise StrettoError(f"cannot listen on {host}:{port} ({reason}); choose another port, or 0 for any") from None
    return listening
