"""What a client may send. Every number that a client supplies is held to one of these before memory is taken for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one listener. An application's own limits (bytes, rows, elements, values) hold besides."""

    memory_bytes: int = 512_000_000  # of all bodies, messages and tensors in flight, in the whole server
    body_bytes: int = 64_000_000  # as sent; an application's max_body_bytes may be smaller
    message_bytes: int = 4_000_000  # gRPC: of one message
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
    streams_per_connection: int = 128  # gRPC: concurrent calls; it cancels calls of anybody where some 1,000 wait
    requests_per_stream: int = 256  # gRPC: unanswered requests of one ModelStreamInfer
    waiting_requests: int = 20_000  # in the whole server; beyond that: overloaded
    pipelined_requests: int = 256  # HTTP: of one connection, that wait for the answer to an earlier one
    shared_memory_regions: int = 256  # registered, or still in use; each holds two descriptors open
    shared_memory_bytes: int = 16_000_000_000  # of all regions together; it is their owners' memory
    header_timeout_s: float = 20.0  # a request must be complete so long after its first byte
    keep_alive_s: float = 75.0

    @property
    def budget_bytes(self) -> int:
        """For bodies and tensors: half of the memory. The other half is for gRPC's messages while they are read."""
        return self.memory_bytes // 2

    @property
    def reads_at_once(self) -> int:
        """gRPC's messages. Their length is not known before they are read, so each may be the longest. A quarter of
        their half is for those that are just being handed over, and there twice.
        """
        return max(1, (self.memory_bytes - self.budget_bytes) * 3 // 4 // self.message_bytes)
