"""What a client may send. Every number that a client supplies is held to one of these before memory is taken for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one listener. An application's own limits (bytes, rows, elements, values) hold besides."""

    body_bytes: int = 64_000_000  # as sent; an application's max_body_bytes may be smaller
    inflated_bytes: int = 64_000_000  # after decompression
    header_json_bytes: int = 1_000_000  # the JSON part of a request with binary tensors
    http_header_bytes: int = 32_768  # request line and headers
    tensors: int = 64  # inputs, and wanted outputs
    dimensions: int = 16
    name_length: int = 256
    id_length: int = 1024
    parameters: int = 64  # of a request or a tensor
    client_ids: int = 10_000  # names of clients remembered at a time
    client_s: float = 3.0  # a client that asked nothing for so long is forgotten
    connections: int = 10_000
    streams_per_connection: int = 4096  # gRPC: concurrent calls
    requests_per_stream: int = 256  # gRPC: unanswered requests of one ModelStreamInfer
    waiting_requests: int = 20_000  # in the whole server; beyond that: overloaded
    pipelined_requests: int = 256  # HTTP: of one connection, that wait for the answer to an earlier one
    header_timeout_s: float = 20.0  # a request must be complete so long after its first byte
    keep_alive_s: float = 75.0
