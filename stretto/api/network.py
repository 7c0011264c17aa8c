"""What a client says of its network along with a request, and how much of its SLO is left when the frame has come.

Every number is bounded here. What is said of the network concerns the client's own queries: their deadlines, and the
size that it is told to send. Its rate is kept to be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.api.errors import bad_request
from stretto.core.client import Told
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.core.recent import plausible

MAX_MS = 3_600_000.0
MAX_ROUND_TRIP_MS = 60_000.0
MAX_BANDWIDTH = 1e15  # bytes/s; what is more than any network has is held to that
MAX_RATE = 1e9
NAMES = frozenset({"slo_ms", "waited_ms", "bandwidth", "rtt_ms", "rate"})


@dataclass(frozen=True, slots=True)
class Reported:
    """None: the client did not say."""

    slo_ns: int | None = None  # from when the frame was made to when the answer is there
    waited_ns: int | None = None  # from when the frame was made to when its first byte was sent
    bytes_per_s: float | None = None  # that it measured last
    round_trip_ns: int | None = None
    rate: float | None = None

    @property
    def is_end_to_end(self) -> bool:
        """Deadlines count from the frame, not from its arrival."""
        return self.slo_ns is not None or self.waited_ns is not None


NOTHING = Reported()


def reported(parameters: dict[str, Any]) -> Reported:
    """A 400 where a number is none, or beyond any network."""
    if NAMES.isdisjoint(parameters):
        return NOTHING
    slo_ms = _number(parameters, "slo_ms", MAX_MS)
    if slo_ms == 0:
        raise bad_request("slo_ms must be above 0")
    bandwidth = _number(parameters, "bandwidth", MAX_BANDWIDTH)
    return Reported(
        None if slo_ms is None else max(1, round(slo_ms * NS_PER_MS)),
        _nanoseconds(parameters, "waited_ms", MAX_MS),
        None if bandwidth is None else plausible(bandwidth),
        _nanoseconds(parameters, "rtt_ms", MAX_ROUND_TRIP_MS),
        _number(parameters, "rate", MAX_RATE),
    )


def left_ns(slo_ns: int, said: Reported, frame_bytes: int, coming_ns: int | None, round_trip_ns: int) -> int:
    """What is left of an SLO now: without the time that the frame waited to be sent, was on its way, and that the
    answer will be on its way back. `coming_ns` is the time since its first byte came; None: nobody saw that, and it is
    reckoned from the bandwidth. At least 1: what has nothing left is given up by the rule of its lane.
    """
    if coming_ns is None:
        coming_ns = 0 if said.bytes_per_s is None else round(frame_bytes * NS_PER_S / said.bytes_per_s)
    return max(1, slo_ns - (said.waited_ns or 0) - coming_ns - round_trip_ns)


def told_parameters(instruction: Told) -> dict[str, str]:
    """What a client is told with every answer and refusal. `mapped` is empty where the plan maps it nowhere."""
    if not instruction.input_size:
        return {}
    return {"input_size": ",".join(map(str, instruction.input_size)), "mapped": instruction.variant}


def _nanoseconds(parameters: dict[str, Any], name: str, high_ms: float) -> int | None:
    value = _number(parameters, name, high_ms)
    return None if value is None else round(value * NS_PER_MS)


def _number(parameters: dict[str, Any], name: str, high: float) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
        raise bad_request(f"{name} must be a number from 0 to {high:.10g}")
    return float(value)
