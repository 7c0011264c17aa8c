"""A gRPC server over a data plane: its options, who may call it, and what it listens on.

gRPC refuses a message by the length that stands before it, and reads one only when it is asked for (reads.py); until
then it takes no more than a window of it. So what it holds is bounded, whatever clients send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from stretto.api.access import Access
from stretto.api.errors import ApiError, Reason, not_found
from stretto.api.grpc.reads import Reads
from stretto.api.grpc.served_plane import ServedPlane
from stretto.api.grpc.servicer import SERVICE, Servicer, account_in
from stretto.api.grpc.status import end, status_of
from stretto.api.limits import Limits

OPEN_CALLS = frozenset({f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady"})
WINDOW_BYTES = 65_536
SHORTEST_PING_S = 10.0  # a client that pings more often, with nothing under way, is shut out


def make_server(
    plane: ServedPlane, *, limits: Limits, is_management: bool, access: Access, reads: Reads, shares_port: bool = False
) -> grpc.aio.Server:
    """A server that listens nowhere yet: `bind` it, then start it. It belongs to the running event loop.

    `reads` is one for all servers that share the memory.
    """
    interceptors = [TokenGate(access, plane)] if access.needs_token else []
    server = grpc.aio.server(interceptors=interceptors, options=options(limits, shares_port))
    calls = Servicer(plane, limits, is_management, access, reads).generic_handler()
    server.add_generic_rpc_handlers((calls, UnknownCalls(plane)))
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


def options(limits: Limits, shares_port: bool = False) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        # What is taken of a message that nobody asked for yet. gRPC would raise it to what the network can carry.
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # Compressed messages are inflated in compression.py, under a limit.
        ("grpc.per_message_decompression", 0),
        # Not a queue: gRPC counts a call as open for a moment after its client knows that it ended, so a client at this
        # bound has new calls refused (UNAVAILABLE). It should be more than a sound client has under way.
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(1_000 * limits.header_timeout_s)),
        # Two servers on one port would each get half of the calls, and neither would say so; front ends of one do.
        ("grpc.so_reuseport", int(shares_port)),
        # A client whose machine vanished is noticed, and what it asked for is cancelled.
        ("grpc.keepalive_time_ms", round(1_000 * limits.keep_alive_s)),
        ("grpc.keepalive_timeout_ms", round(1_000 * limits.header_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1_000 * SHORTEST_PING_S)),
    ]


class UnknownCalls(grpc.GenericRpcHandler):
    """Whatever no other handler knows: gRPC would refuse it in the same way, but nobody would count it."""

    def __init__(self, plane: ServedPlane):
        self.plane = plane

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self.turn_away)

    async def turn_away(self, requests: Any, context: Any) -> None:
        unknown = self.plane.count_refusal(
            not_found("there is no such call; docs/serving.md names those that there are")
        )
        await end(context, replace(status_of(unknown, "unknown"), code=grpc.StatusCode.UNIMPLEMENTED))


class TokenGate(grpc.aio.ServerInterceptor):
    """Lets a call through that carries the bearer token, and calls for health always."""

    def __init__(self, access: Access, plane: ServedPlane):
        self.access = access
        self.plane = plane

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        if handler_call_details.method in OPEN_CALLS or self.is_known(handler_call_details):
            return await continuation(handler_call_details)
        # A handler of streams does not wait for a message, whatever kind of call it was meant to be.
        return grpc.stream_stream_rpc_method_handler(self.turn_away)

    async def turn_away(self, requests: Any, context: Any) -> None:
        missing = ApiError(Reason.UNAUTHENTICATED, "a bearer token is needed in the metadata: authorization: Bearer …")
        await end(context, status_of(self.plane.count_refusal(missing), "authorization"))

    def is_known(self, call: grpc.HandlerCallDetails) -> bool:
        return account_in(call.invocation_metadata, self.access) is not None
