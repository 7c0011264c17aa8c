"""A load that switches between phases, each a Poisson process with a rate of its own, drawn slot by slot.

Phases follow one another in turn and last for exponentially distributed times (a Markov-modulated Poisson process: the
workload of edge RL, equation 12) or for fixed ones (its periodic twin). A phase may end anywhere inside a slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.profile import NS_PER_S
from stretto.sim.arrivals import Load, Source
from stretto.sim.loop import uniform
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import TwoLevel

PHASES = 2

SWITCH = np.dtype(
    [
        ("gap_ns", "f8", (PHASES,)),  # mean time between arrivals, by phase
        ("hold_ns", "f8", (PHASES,)),  # mean length of a phase
        ("is_fixed", "i8"),  # phases last just as long
        ("phase", "i8"),
        ("began_ns", "f8"),
        ("until_ns", "f8"),  # when the phase ends
        ("random", "u8"),
    ],
    align=True,
)


@dataclass(frozen=True)
class Switching:
    """Queries/s and mean seconds by phase; `is_periodic`: phases last just so long."""

    rates: tuple[float, float]
    seconds: tuple[float, float]
    is_periodic: bool = False

    @property
    def mean_rate(self) -> float:
        """Queries/s over a long time."""
        return sum(rate * held for rate, held in zip(self.rates, self.seconds, strict=True)) / sum(self.seconds)

    def source(self) -> Load:
        """The same load for `simulate`."""
        (low, high), (low_s, high_s) = self.rates, self.seconds
        if self.is_periodic:
            return Load(TwoLevel(low, high, low_s, high_s))
        d0 = [[-low - 1 / low_s, 1 / low_s], [1 / high_s, -high - 1 / high_s]]
        return Load(MarkovianArrivals(d0, [[low, 0.0], [0.0, high]]))


SILENT = Switching((0.0, 0.0), (1.0, 0.0))  # of a simulation that plays a tape: always in its first phase


def switching_of(source: Source) -> Switching | None:
    """Returns a scenario's load, the phase of lower rate first; None where it does not switch between two rates."""
    process = source.process if isinstance(source, Load) and not source.mix else None
    scale = 1.0
    if isinstance(source, Load) and source.rate is not None and process is not None:
        scale = source.rate / process.mean_rate()
    if isinstance(process, TwoLevel):
        rates = (process.low * scale, process.high * scale)
        return Switching(rates, (process.low_seconds, process.high_seconds), is_periodic=True)
    if isinstance(process, MarkovianArrivals) and process.d0.shape == (PHASES, PHASES):
        arriving = process.d1 * scale
        if arriving[0, 1] == arriving[1, 0] == 0:
            leaving = np.array([process.d0[0, 1], process.d0[1, 0]]) * scale
            order = np.argsort(np.diag(arriving), kind="stable")
            rates, seconds = np.diag(arriving)[order].tolist(), (1.0 / leaving[order]).tolist()
            return Switching((rates[0], rates[1]), (seconds[0], seconds[1]))
    return None


def switches(loads: tuple[Switching, ...], seed: int) -> NDArray[np.void]:
    """One SWITCH for each, in a phase and at a moment of it as they are found at a random time."""
    records = np.zeros(len(loads), dtype=SWITCH)
    generator = np.random.default_rng([seed, 0x5717C4])
    draws = generator.random((len(loads), 2))
    for record, load, (which, into) in zip(records, loads, draws, strict=True):
        hold_ns = np.array(load.seconds) * NS_PER_S
        record["gap_ns"] = NS_PER_S / np.maximum(load.rates, 1e-12)
        record["hold_ns"] = hold_ns
        record["is_fixed"] = load.is_periodic
        record["phase"] = phase = int(which >= hold_ns[0] / hold_ns.sum())
        if load.is_periodic:
            record["began_ns"] = -into * hold_ns[phase]
            record["until_ns"] = record["began_ns"] + hold_ns[phase]
        else:
            record["until_ns"] = -math.log(1.0 - into) * hold_ns[phase]
    records["random"] = generator.integers(0, 2**63, len(loads), dtype=np.uint64)
    return records


@compiled
def draw_arrivals(switch: Any, arrivals: Any, slo_ns: int, begin_ns: int, end_ns: int) -> int:
    """The queries of a slot into `arrivals`, with the phase as their class. Their number; -1 where there is no room."""
    count = 0
    now = float(begin_ns)
    while now < end_ns:
        now -= math.log(uniform(switch)) * switch.gap_ns[switch.phase]
        if now < switch.until_ns and now < end_ns:
            if count == len(arrivals):
                return -1
            arrival = arrivals[count]
            arrival.time_ns = int(now)
            arrival.deadline_ns = int(now) + slo_ns
            arrival.query_class = switch.phase
            count += 1
        elif switch.until_ns < end_ns:  # gaps have no memory: the next phase begins a new one
            now = switch.until_ns
            switch.phase = 1 - switch.phase
            switch.began_ns = now
            hold_ns = switch.hold_ns[switch.phase]
            switch.until_ns = now + (hold_ns if switch.is_fixed else -math.log(uniform(switch)) * hold_ns)
    return count
