"""How many bytes a client's next frame may have: what its network carries, and no longer on the way than planned for.

The server plans each half second with what it heard; between two plans the network may get worse. A client then sends
less than it was told (it backs off), so that a frame is not on its way for longer than when it was told. The planner
and the simulated client use this. A live client (`stretto.client.pacing`) knows more, how long its answers took, and
holds a frame against what is left of its SLO instead.
"""

from __future__ import annotations

from stretto.core.profile import NS_PER_S

HEADROOM = 0.95  # of the bandwidth, that frames at the client's rate may take: what waits on a link must drain again
CONFIRMED_NS = NS_PER_S // 2  # what is told again after so long was planned anew, with the bandwidth of then
PROBE_NS = NS_PER_S // 2  # a server's plan period: who is refused tries once in each
SETTLED_NS = 12 * NS_PER_S // 100  # from a client's first measurement on: what it is told before rests on none
TOLERANCE = 1.1  # a frame may be so many times as long on its way as when its size was told


def carried_bytes(bytes_per_s: float, rate: float, headroom: float = HEADROOM) -> float:
    """The most that frames at a rate may have if the network is to carry all of them."""
    return headroom * bytes_per_s / rate if rate > 0 else float("inf")


def bytes_in_time(
    bytes_per_s: float, told_bytes: float, told_bytes_per_s: float, waiting_ns: int = 0, tolerance: float = TOLERANCE
) -> float:
    """The most that are through the network in the time that the told frame would have taken when it was told.
    `waiting_ns`: what earlier frames still need on the link.
    """
    left_s = tolerance * told_bytes / told_bytes_per_s - waiting_ns / NS_PER_S
    return max(0.0, left_s * bytes_per_s)
