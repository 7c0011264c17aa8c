"""A gRPC server over a data plane: its options, who may call it, and what it listens on.

One known gap is gRPC's own: it reads a message to its end before it looks at its length, so a client that may call at
all can make the server hold, for a moment, as much as it sends. One without the token cannot: it is turned away before
its message is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from stretto.api.access import Access
from stretto.api.errors import ApiError, Reason
from stretto.api.grpc.served_plane import ServedPlane
from stretto.api.grpc.servicer import SERVICE, Servicer, account_in
from stretto.api.grpc.status import end, status_of
from stretto.api.limits import Limits

OPEN_CALLS = frozenset({f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady"})
SHORTEST_PING_S = 10.0  # a client that pings more often, with nothing under way, is shut out


def make_server(plane: ServedPlane, *, limits: Limits, is_management: bool, access: Access) -> grpc.aio.Server:
    """A server that listens nowhere yet: `bind` it, then start it. It belongs to the running event loop."""
    interceptors = [TokenGate(access)] if access.needs_token else []
    server = grpc.aio.server(interceptors=interceptors, options=options(limits))
    server.add_generic_rpc_handlers((Servicer(plane, limits, is_management, access).generic_handler(),))
    return server


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
    """Listens on "host:port" and returns the port, which is a free one where the address says 0."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: is the address in use, or not of this machine?") from error
    if not port:
        raise OSError(f"gRPC cannot listen on {address}: is the address in use, or not of this machine?")
    return int(port)


def options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        # Compressed messages are inflated in compression.py, under a limit.
        ("grpc.per_message_decompression", 0),
        # Not a queue: gRPC counts a call as open for a moment after its client knows that it ended, so a client at this
        # bound has new calls refused (UNAVAILABLE). It should be more than a sound client has under way.
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        # Two servers on one port would each get half of the calls, and neither would say so.
        ("grpc.so_reuseport", 0),
        # A client whose machine vanished is noticed, and what it asked for is cancelled.
        ("grpc.keepalive_time_ms", round(1_000 * limits.keep_alive_s)),
        ("grpc.keepalive_timeout_ms", round(1_000 * limits.header_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1_000 * SHORTEST_PING_S)),
    ]


class TokenGate(grpc.aio.ServerInterceptor):
    """Lets a call through that carries the bearer token, and calls for health always."""

    def __init__(self, access: Access):
        self.access = access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        if handler_call_details.method in OPEN_CALLS or self.is_known(handler_call_details):
            return await continuation(handler_call_details)
        # A handler of streams does not wait for a message, whatever kind of call it was meant to be.
        return grpc.stream_stream_rpc_method_handler(turn_away)

    def is_known(self, call: grpc.HandlerCallDetails) -> bool:
        return account_in(call.invocation_metadata, self.access) is not None


async def turn_away(requests: Any, context: Any) -> None:
    missing = ApiError(Reason.UNAUTHENTICATED, "a bearer token is needed in the metadata: authorization: Bearer …")
    await end(context, status_of(missing, "authorization"))
