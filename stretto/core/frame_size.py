"""How many bytes a client's frames may have if its network is to carry all of them, and how often it tries again."""

from __future__ import annotations

from stretto.core.profile import NS_PER_S

HEADROOM = 0.95  # of the bandwidth, that frames at the client's rate may take: what waits on a link must drain again
MISCOUNT = 1.0  # frames/s, by which a count of a second may be too high
PROBE_NS = NS_PER_S // 2  # a server's plan period: who is refused tries once in each


def carried_bytes(bytes_per_s: float, rate: float, headroom: float = HEADROOM) -> float:
    """The most that frames at a rate may have if the network is to carry all of them."""
    return headroom * bytes_per_s / rate if rate > 0 else float("inf")
