"""How a client of frames paces itself: which size to send next, and whether to send at all (Jellyfish, section III).

The server tells the input size of the variant that the client is mapped to. The client knows its network sooner than
the server does, so it sends that size, or the largest below it that the network and its own speed allow: a frame must
be made ready, reach the server, be answered in the time that answers took lately, and come back within what is left of
the SLO; and frames at the present rate must not take more than all the time. The shipped client and the simulated one
follow this same rule; simulated frames are ready at once.

Sizes are counted from 0, the smallest; `Pacer` of the client has their heights and widths. Pure: time comes in as an
argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from stretto.core.frame_size import HEADROOM, MISCOUNT, PROBE_NS
from stretto.core.preparation import Preparation
from stretto.core.profile import NS_PER_S
from stretto.core.recent import LEAST_BEYOND_BYTES, Recent, bandwidth_of

ROUND_TRIPS = 8  # measured last; the least of them counts, for what a round trip takes longer is waiting, not distance
SMOOTHING = 0.25
SPREADS = 4.0  # that are left for answers which take longer than most, as TCP leaves them for round trips
REFUSALS = 2  # one after the other, after which a client holds back: one alone says that a lane was full for a moment
LEAST_SHARE = 0.1  # of the SLO that answers are taken to need until one came
IN_FLIGHT = 4  # frames that may wait to be sent or for their answers at a time
GRACE_NS = NS_PER_S // 2  # after its SLO, that an answer is still waited for, so that the server's word is heard


class Pacing:
    """`guess_bytes` are those of a frame at each size, smallest first, until one was sent. `probe_bytes` are those of a
    message that goes there and back to see how long that takes. `preparation` says how long frames take to be made
    ready; None: no time.
    """

    def __init__(
        self,
        now_ns: int,
        slo_ns: int,
        guess_bytes: Sequence[float],
        probe_bytes: int = 0,
        preparation: Preparation | None = None,
    ) -> None:
        self.slo_ns = slo_ns
        self._preparation = preparation
        self._probe_bytes = probe_bytes
        self._guess_bytes = list(guess_bytes)
        self._known_bytes: dict[int, float] = {}
        self._recent = Recent(now_ns)
        self._round_trips: deque[int] = deque(maxlen=ROUND_TRIPS)
        self._serving_ns = LEAST_SHARE * slo_ns
        self._is_serving_known = False  # by a frame that was answered, or came too late
        self._spread_ns = 0.0  # how far answers are from that mean, themselves in the mean
        self._told: int | None = None
        self._is_held = False  # refused again and again, or mapped nowhere: only probes are sent
        self._refusals = 0  # for overload, since the last answer
        self._probe_ns = now_ns
        self._unreported: float | None = None
        self._last_bytes_per_s: float | None = None
        self._measured_ns = now_ns

    # -- what happens ------------------------------------------------------------------------------------------------

    def made(self, now_ns: int) -> None:
        """The program has a frame."""
        self._recent.counted(now_ns)

    def acknowledged(self, now_ns: int, frame_bytes: int, took_ns: int) -> None:
        """The server had all of a frame so long after its first byte was sent, with nothing else on the way."""
        bandwidth = bandwidth_of(frame_bytes, took_ns, self._probe_bytes, self.round_trip_ns)
        if bandwidth is not None:
            self._recent.reported(now_ns, bandwidth)
            self._unreported = self._last_bytes_per_s = bandwidth
            self._measured_ns = now_ns

    def guess(self, guess_bytes: Sequence[float]) -> None:
        """How many bytes a frame has at each size until one was sent."""
        self._guess_bytes = list(guess_bytes)

    def went(self, took_ns: int) -> None:
        """A probe took so long there and back."""
        self._round_trips.append(max(0, took_ns))

    def sent(self, size: int, frame_bytes: int) -> None:
        """A frame has so many bytes at a size."""
        known = self._known_bytes.get(size, float(frame_bytes))
        self._known_bytes[size] = known + SMOOTHING * (frame_bytes - known)

    def answered(self, now_ns: int, serving_ns: float, told: int | None, is_nowhere: bool) -> None:
        """An answer came, so long after the server had the frame. `told`: the size to send from now on, None where the
        server says nothing; `is_nowhere`: the plan has no place for this client.
        """
        self._needed(serving_ns)
        self._is_held, self._refusals = False, 0
        self._hear(now_ns, told, is_nowhere)

    def refused(
        self, now_ns: int, is_overload: bool, told: int | None, is_nowhere: bool, had_ns: int | None = None
    ) -> None:
        """The server did not answer; `is_overload`: it has too much work. Else the frame came too late, though it had
        `had_ns` left when it came: an answer would have needed more. To learn from answers alone would be to learn from
        those frames alone that nobody was before.
        """
        self._refusals += is_overload
        if self._refusals >= REFUSALS:
            self._hold(now_ns)
        if not is_overload and had_ns is not None:
            self._needed(max(had_ns, self._serving_ns))
        self._hear(now_ns, told, is_nowhere)

    def _needed(self, serving_ns: float) -> None:
        """An answer takes so long. The first one may be off by half of that, as TCP's first round trip."""
        if not self._is_serving_known:
            self._is_serving_known = True
            self._serving_ns, self._spread_ns = min(serving_ns, self.slo_ns), serving_ns / 2
            return
        off_ns = min(serving_ns, self.slo_ns) - self._serving_ns
        self._serving_ns += SMOOTHING * off_ns
        self._spread_ns += SMOOTHING * (abs(off_ns) - self._spread_ns)

    def _hear(self, now_ns: int, told: int | None, is_nowhere: bool) -> None:
        if told is not None:
            self._told = told
        if is_nowhere:
            self._hold(now_ns)

    def _hold(self, now_ns: int) -> None:
        if not self._is_held:
            self._is_held = True
            self._probe_ns = now_ns + PROBE_NS

    # -- what to do --------------------------------------------------------------------------------------------------

    def is_held_back(self, now_ns: int) -> bool:
        """Whether a frame must not be sent now. Asking takes the turn: where it may, it is the probe of this period."""
        if not self._is_held:
            return False
        if now_ns < self._probe_ns:
            return True
        self._probe_ns = now_ns + PROBE_NS
        return False

    def size_for(self, now_ns: int, left_ns: int) -> int | None:
        """The size to send a frame at that has so much of its SLO left; None: it cannot come back in time at any."""
        bandwidth = self.expected_bytes_per_s(now_ns)
        fits = [size for size in range(len(self._guess_bytes)) if self._fits(size, bandwidth, left_ns, now_ns)]
        if not fits:
            return 0 if self._is_worth_sending(now_ns, left_ns) else None
        if bandwidth is None:
            return next((size for size in fits if size >= self._measurable()), fits[-1])
        size = fits[0] if self._is_held else self._largest_of(fits)
        if self._beyond_bytes(size) < LEAST_BEYOND_BYTES and now_ns - self._measured_ns > NS_PER_S:
            size = max(size, self._measurable())  # or a network that grew better would never be noticed
        return size

    def _largest_of(self, fits: list[int]) -> int:
        """The one that was told, or the largest below it that fits."""
        within = [size for size in fits if self._told is None or size <= self._told]
        return within[-1] if within else fits[0]

    def _measurable(self) -> int:
        """The smallest that shows how fast the network is; the largest where all are too small for that."""
        sizes = range(len(self._guess_bytes))
        return next((size for size in sizes if self._beyond_bytes(size) >= LEAST_BEYOND_BYTES), sizes[-1])

    def _fits(self, size: int, bandwidth: float | None, left_ns: int, now_ns: int) -> bool:
        prepared_ns = 0.0
        if self._preparation is not None:
            left_ns -= round(self._preparation.most_ns(now_ns, size))
            prepared_ns = self._preparation.mean_ns(now_ns, size)
        if bandwidth is None:
            return self.round_trip_ns < left_ns
        sending_ns = self._beyond_bytes(size) / bandwidth * NS_PER_S
        if prepared_ns + sending_ns > self._most_taken_ns(now_ns):
            return False
        serving_ns = self._serving_ns + SPREADS * self._spread_ns
        return self.round_trip_ns + sending_ns + serving_ns <= left_ns

    def _most_taken_ns(self, now_ns: int) -> float:
        """How long a frame may take if all of them are to go. They go one after the other, each when the one before it
        is acknowledged, so a round trip is part of each; where that is most of the time, smaller frames would not help.
        """
        rate = self._recent.rate(now_ns) - MISCOUNT
        each_ns = HEADROOM * NS_PER_S / rate if rate > 0 else math.inf
        return max(each_ns - self.round_trip_ns, each_ns / 2)

    def _is_worth_sending(self, now_ns: int, left_ns: int) -> bool:
        """Whether the smallest frame may come in time, by the mean or by the last frame: one that was held up is no
        reason to send nothing, and neither is a mean of which it is a part. What was measured long ago is looked at
        anew, or nothing would be sent ever again.
        """
        mean = self._recent.bytes_per_s(now_ns)
        if mean is None or now_ns - self._measured_ns > PROBE_NS:
            return self.round_trip_ns < left_ns
        best = max(mean, self._last_bytes_per_s or mean)
        return self.round_trip_ns + self._beyond_bytes(0) * NS_PER_S / best < left_ns

    def expected_bytes_per_s(self, now_ns: int) -> float | None:
        """The mean of the last second, or what the last frame found where that is less: a bandwidth that fell is known
        with the next frame, and by the mean only a second later, which would be a second of late frames.
        """
        mean = self._recent.bytes_per_s(now_ns)
        if mean is None or self._last_bytes_per_s is None or now_ns - self._measured_ns > NS_PER_S:
            return mean
        return min(mean, self._last_bytes_per_s)

    def _bytes(self, size: int) -> float:
        """As sent lately at this size; else as of the nearest size that was, by their guesses."""
        if size in self._known_bytes:
            return self._known_bytes[size]
        if not self._known_bytes:
            return self._guess_bytes[size]
        near = min(
            self._known_bytes, key=lambda known: abs(math.log(self._guess_bytes[known] / self._guess_bytes[size]))
        )
        return self._known_bytes[near] * self._guess_bytes[size] / self._guess_bytes[near]

    def _beyond_bytes(self, size: int) -> float:
        """What a frame has more than a probe: the time of the probe's own bytes is part of the round trip."""
        return max(0.0, self._bytes(size) - self._probe_bytes)

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def round_trip_ns(self) -> int:
        return min(self._round_trips, default=0)

    @property
    def is_held(self) -> bool:
        return self._is_held

    @property
    def has_round_trip(self) -> bool:
        """Whether one was measured."""
        return bool(self._round_trips)

    def bytes_per_s(self, now_ns: int) -> float | None:
        """Harmonic mean over the last second."""
        return self._recent.bytes_per_s(now_ns)

    def rate(self, now_ns: int) -> float:
        """Frames per second."""
        return self._recent.rate(now_ns)

    def to_report(self) -> float | None:
        """The bandwidth of the last frame, once: so that the server's mean counts it once."""
        bytes_per_s, self._unreported = self._unreported, None
        return bytes_per_s
