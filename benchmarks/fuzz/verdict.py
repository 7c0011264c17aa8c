"""What may come of any input: an answer or a refusal that blames the right side. Everything else is a finding."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_KEPT = 20  # findings with their bytes
# An outcome of a query that was understood: it came too late for the deadline that it states.
EXPIRED = (504, "expired")
GRPC_OF_CLIENT = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
}
GRPC_OF_CLIENT |= {"PERMISSION_DENIED", "UNAUTHENTICATED", "CANCELLED"}


@dataclass
class Findings:
    """Counts by kind of input and by status, and what should not have been."""

    inputs: Counter[str] = field(default_factory=Counter)  # by kind, and where it was sent
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    kept: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.inputs.total()

    def found(self, what: str, data: bytes) -> None:
        self.wrong[what] += 1
        if len(self.kept) < MOST_KEPT:
            self.kept.append((what, data))

    def http(self, status: int, body: bytes, data: bytes) -> None:
        self.statuses[str(status)] += 1
        if status >= 500 and (status, _reason(body)) != EXPIRED:
            self.found(f"status {status}", data)

    def grpc(self, code: str, data: bytes) -> None:
        self.statuses[code] += 1
        if code not in GRPC_OF_CLIENT:
            self.found(f"gRPC {code}", data)

    def add(self, other: Findings) -> None:
        for mine, its in ((self.inputs, other.inputs), (self.statuses, other.statuses), (self.wrong, other.wrong)):
            mine.update(its)
        self.kept = (self.kept + other.kept)[:MOST_KEPT]


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return ""


def responses(data: bytes | bytearray) -> Iterator[tuple[int, bytes, int]]:
    """Whole responses at the start of `data`: status, body, and where each ends. Informational ones are passed over.

    ValueError where it is no HTTP, which a server must never send.
    """
    place = 0
    while True:
        end = data.find(b"\r\n\r\n", place)
        if end < 0:
            return
        lines = bytes(data[place:end]).split(b"\r\n")
        version, status, *_ = lines[0].split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError("this is no HTTP")
        if status.startswith(b"1"):
            place = end + 4
            continue
        length = next(int(line[15:]) for line in lines[1:] if line.lower().startswith(b"content-length:"))
        body_end = end + 4 + length
        if body_end > len(data):
            return
        yield int(status), bytes(data[end + 4 : body_end]), body_end
        place = body_end
