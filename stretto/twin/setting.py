"""A setting: measured conditions, enough to simulate them. Plans are judged under it (docs/judging.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.profile import Quantile
from stretto.sim.arrivals import Source
from stretto.sim.residuals import FEWEST, Measured, Residuals
from stretto.sim.service import Empirical, Service
from stretto.twin.classes import Labelled
from stretto.twin.clients import MOST_CLIENTS, ClientConditions
from stretto.twin.resample import Resampled
from stretto.twin.stretch import ArrivalStretch


def ladders_of(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    return {application.name: application.ladder for application in deployment.applications}


def no_times() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Setting:
    """Arrivals by application and residuals by (application/variant, kind of worker). Samples are sorted.

    Residuals are ratios to one row of the profiles; None: the quantile that decisions rest on.
    """

    arrivals: Mapping[str, ArrivalStretch]
    residuals: Mapping[tuple[str, str], Residuals] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)  # that plans reckon with
    present: Mapping[str, int] = field(default_factory=dict)  # workers that are there, by kind
    handoff_ns: NDArray[np.int64] = field(
        default_factory=no_times
    )  # of batches, on their way to an idle worker and back
    overrun_ns: NDArray[np.int64] = field(default_factory=no_times)  # by how much batches ended later than expected
    networks: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # Mbit/s as measured, by client
    row: Quantile | None = None
    clients: tuple[ClientConditions, ...] = ()  # with networks that are known
    moved: Mapping[tuple[str, str], float] = field(default_factory=dict)  # profiles, since: by how much (as_measured)
    ladders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # all variants, by application
    evidence: Mapping[str, Labelled] = field(default_factory=dict)  # by application: what it says of known classes
    presumed: tuple[float, ...] = ()  # ratios of run times to profiled means, where none was measured; in no file

    def __post_init__(self) -> None:
        if any(count < 0 for count in self.present.values()):
            raise StrettoError("a number of workers is not negative")
        if len(self.clients) > MOST_CLIENTS:
            raise StrettoError(f"a setting holds at most {MOST_CLIENTS} clients")
        for name in ("handoff_ns", "overrun_ns"):
            times = np.sort(np.asarray(getattr(self, name), dtype=np.int64))
            times.setflags(write=False)
            object.__setattr__(self, name, times)

    def ladder(self, application: str) -> tuple[str, ...]:
        """All its variants from fast to accurate; by name where that was not kept."""
        ran = sorted(label.partition("/")[2] for label, _ in self.residuals if label.partition("/")[0] == application)
        return tuple(dict.fromkeys((*self.ladders.get(application, ()), *ran)))

    def source(self, load_factor: float = 1.0, seed: int | None = None) -> Source:
        """Arrivals like those measured, `load_factor` times as dense. The same seed gives the same arrivals, whatever
        plan is tried; without one, the simulation's seed is taken.
        """
        return Resampled(self.arrivals, load_factor, seed)

    def service(self) -> Service:
        """Run times and handoffs like those measured, for a simulation with these delays; where nothing was, as they
        are presumed, else between the profiles' quantiles.
        """
        if not self.residuals:
            return Empirical(self.presumed)
        has_handoffs = len(self.handoff_ns) >= FEWEST
        handoffs_ns = self.handoff_ns - self.delays.control_ns if has_handoffs else no_times()
        return Measured(self.residuals, handoffs_ns, self.row, self.moved)
