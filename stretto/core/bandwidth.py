"""Bandwidth over time: how fast a network is at each moment, and how long a frame takes over it.

A trace is read from text: Mbit/s values that hold for a step each, or mahimahi's form, a line per packet. Every trace
repeats itself for ever; `shifted` starts it elsewhere, `scaled` makes the same shape faster or slower. Pure: time comes
in as an argument, so that the simulated network and the proxy read the same numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, groupby
from math import ceil, isfinite

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S

BYTES_PER_MBIT = 125_000.0
PACKET_BYTES = 1500  # that one line of mahimahi's form lets through
MAX_VALUES = 10_000_000
MAX_MBIT = 1e6
MAX_STEP_S = 86_400.0


class TraceForm(StrEnum):
    """How the text of a trace is to be read."""

    MBIT = "mbit"  # a value in Mbit/s a line, each held for one step
    MAHIMAHI = "mahimahi"  # a line per millisecond, counted from the start, at which one packet of 1500 bytes may pass


@dataclass(frozen=True, eq=False)
class Bandwidth:
    """`rates[i]` bytes/s from `starts_ns[i]` until the next start; the whole repeats after `period_ns`.

    `offset_ns` is where in the trace time 0 is.
    """

    starts_ns: tuple[int, ...]
    rates: tuple[float, ...]
    period_ns: int
    offset_ns: int = 0
    _sent: tuple[float, ...] = field(init=False, repr=False)  # bytes from the trace's start to each start, and the end

    def __post_init__(self) -> None:
        if not self.rates or len(self.rates) != len(self.starts_ns) or self.starts_ns[0] != 0:
            raise StrettoError("a bandwidth trace needs one rate for each start, the first of them at 0")
        ends_ns = (*self.starts_ns[1:], self.period_ns)
        lengths_ns = [end - start for start, end in zip(self.starts_ns, ends_ns, strict=True)]
        if min(lengths_ns) <= 0:
            raise StrettoError("the starts of a bandwidth trace rise, and its period is after the last of them")
        if not all(isfinite(rate) and rate >= 0 for rate in self.rates) or max(self.rates) <= 0:
            raise StrettoError("bandwidths are not negative, and one at least is above zero; nothing would ever pass")
        parts = (rate * length_ns / NS_PER_S for rate, length_ns in zip(self.rates, lengths_ns, strict=True))
        object.__setattr__(self, "_sent", tuple(accumulate(parts, initial=0.0)))

    @property
    def mean(self) -> float:
        """Bytes/s over the whole trace."""
        return self._sent[-1] * NS_PER_S / self.period_ns

    @property
    def least(self) -> float:
        """The lowest rate of the trace, bytes/s."""
        return min(self.rates)

    def rate_at(self, time_ns: int) -> float:
        """Bytes/s at a moment."""
        return self.rates[bisect_right(self.starts_ns, (time_ns + self.offset_ns) % self.period_ns) - 1]

    def sent_by(self, time_ns: int) -> float:
        """Bytes that pass from the trace's start to a moment, over as many rounds as that takes."""
        rounds, inside_ns = divmod(time_ns + self.offset_ns, self.period_ns)
        place = bisect_right(self.starts_ns, inside_ns) - 1
        part = self.rates[place] * (inside_ns - self.starts_ns[place]) / NS_PER_S
        return rounds * self._sent[-1] + self._sent[place] + part

    def time_to_send(self, start_ns: int, size: float) -> int:
        """Nanoseconds until so many bytes that start at a moment have passed, over the rates as they change."""
        if size <= 0:
            return 0
        place = bisect_right(self.starts_ns, (start_ns + self.offset_ns) % self.period_ns) - 1
        inside_ns = (start_ns + self.offset_ns) % self.period_ns
        rate, end_ns = self.rates[place], (*self.starts_ns[place + 1 : place + 2], self.period_ns)[0]
        if rate > 0 and size <= rate * (end_ns - inside_ns) / NS_PER_S:  # within one step: the usual case
            return ceil(size * NS_PER_S / rate)
        whole = self._sent[-1]
        target = self._sent[place] + rate * (inside_ns - self.starts_ns[place]) / NS_PER_S + size
        rounds, left = divmod(target, whole)
        if left <= 0.0:  # the last byte passes where the trace last had any bandwidth
            rounds, left = rounds - 1, whole
        # The first step by whose end `left` bytes have passed: those where nothing passes are behind it.
        last = min(_first_at_least(self._sent, left) - 1, len(self.rates) - 1)
        into_ns = (left - self._sent[last]) * NS_PER_S / self.rates[last]
        return max(0, ceil(rounds * self.period_ns + self.starts_ns[last] + into_ns - inside_ns))

    def mean_over(self, start_ns: int, end_ns: int) -> float:
        """Bytes/s between two moments."""
        if end_ns <= start_ns:
            return self.rate_at(start_ns)
        return (self.sent_by(end_ns) - self.sent_by(start_ns)) * NS_PER_S / (end_ns - start_ns)

    def scaled(self, factor: float) -> Bandwidth:
        """The same shape, so many times as fast."""
        if not 0 < factor < 1e9:
            raise StrettoError(f"a bandwidth is scaled by a factor above zero, not {factor}")
        return replace(self, rates=tuple(rate * factor for rate in self.rates))

    def shifted(self, offset_ns: int) -> Bandwidth:
        """The same trace, begun so much later in it."""
        return replace(self, offset_ns=(self.offset_ns + offset_ns) % self.period_ns)


def constant(bytes_per_s: float) -> Bandwidth:
    """A network that never changes."""
    return Bandwidth((0,), (float(bytes_per_s),), NS_PER_S)


def in_steps(rates: Sequence[float], step_s: float = 1.0) -> Bandwidth:
    """Bytes/s values that hold for `step_s` each."""
    if not 1e-6 <= step_s <= MAX_STEP_S:
        raise StrettoError(f"a step of a bandwidth trace lasts between 1 µs and a day, not {step_s} s")
    step_ns = round(step_s * NS_PER_S)
    return Bandwidth(tuple(range(0, step_ns * len(rates), step_ns)), tuple(map(float, rates)), step_ns * len(rates))


def bandwidth_from(text: str, form: TraceForm = TraceForm.MBIT, *, step_s: float = 1.0) -> Bandwidth:
    """A trace from its text, one number a line; blank lines and what follows # are passed over."""
    values = _numbers(text)
    if form is TraceForm.MAHIMAHI:
        return _from_packets(values)
    for line, value in values:
        if not 0 <= value <= MAX_MBIT:
            raise StrettoError(f"line {line} of the trace: a bandwidth is between 0 and {MAX_MBIT:g} Mbit/s")
    return in_steps([value * BYTES_PER_MBIT for _, value in values], step_s)


def _from_packets(values: list[tuple[int, float]]) -> Bandwidth:
    """A packet at millisecond t passes in the millisecond that ends there; the last line is where the trace repeats."""
    before = 0.0
    for line, value in values:
        if value != int(value) or not before <= value <= MAX_STEP_S * 1e3:
            raise StrettoError(f"line {line} of the trace: mahimahi's form has whole milliseconds that never fall")
        before = value
    if before < 1:
        raise StrettoError("a trace in mahimahi's form ends after its first millisecond")
    packets = {ms: len(list(lines)) for ms, lines in groupby(max(0, int(value) - 1) for _, value in values)}
    starts: list[int] = []
    rates: list[float] = []
    for ms in sorted({0, *packets, *(ms + 1 for ms in packets)}):
        rate = packets.get(ms, 0) * PACKET_BYTES * 1e3
        if ms < int(before) and (not rates or rates[-1] != rate):
            starts.append(ms * NS_PER_MS)
            rates.append(rate)
    return Bandwidth(tuple(starts), tuple(rates), int(before) * NS_PER_MS)


def _numbers(text: str) -> list[tuple[int, float]]:
    """(line, value) of each line that holds one."""
    values: list[tuple[int, float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        try:
            value = float(content)
        except ValueError:
            raise StrettoError(f"line {number} of the trace is not a number: {content[:40]!r}") from None
        if not isfinite(value):
            raise StrettoError(f"line {number} of the trace is not a number: {content[:40]!r}")
        values.append((number, value))
        if len(values) > MAX_VALUES:
            raise StrettoError(f"a trace has at most {MAX_VALUES} lines")
    if not values:
        raise StrettoError("a trace needs at least one number")
    return values


def _first_at_least(rising: Sequence[float], value: float) -> int:
    low, high = 0, len(rising) - 1
    while low < high:
        middle = (low + high) // 2
        if rising[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
