"""How long a simulated batch really takes: exactly as profiled, drawn around it, or drawn from what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.sim.residuals import Measured


class Draw(IntEnum):
    """How the compiled loop draws a service time."""

    NONE = 0
    LOGNORMAL = 1
    QUANTILES = 2
    RATIOS = 3
    MEASURED = 4


@dataclass(frozen=True)
class Deterministic:
    """Always l(b) at a quantile; by default the one that decisions rest on."""

    quantile: Quantile | None = None


@dataclass(frozen=True)
class Lognormal:
    """Mean l(b) of the profile's means, with this coefficient of variation."""

    cv: float

    def __post_init__(self) -> None:
        if not 0 <= self.cv <= 10:
            raise StrettoError(f"the coefficient of variation is between 0 and 10, not {self.cv}")


@dataclass(frozen=True)
class Empirical:
    """Drawn from what was measured: from `ratios` of single runs to their mean, else between profiled quantiles."""

    ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 < ratio < 1000 for ratio in self.ratios):
            raise StrettoError("every measured ratio must be above 0 and below 1000")


Service = Deterministic | Lognormal | Empirical | Measured


@dataclass(frozen=True, eq=False)
class ServiceArrays:
    """What the loop reads: `table[row, quantile, b]` in ns, the way to draw, and its parameters."""

    draw: Draw
    table: NDArray[np.int64]
    base: int  # which quantile of the table a NONE, LOGNORMAL, RATIOS or MEASURED draw starts from
    parameters: NDArray[np.float64]
    laws: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))  # MEASURED: Measured.laid_out
    handoffs_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # Measured.handoffs_ns


def service_arrays(service: Service, deployment: Deployment, stride: int) -> ServiceArrays:
    """Lay a service law out for the compiled loop, with rows as in the dispatcher."""
    profiles: list[Any] = [variant.profile_on(kind) for variant in deployment.variants for kind in deployment.kinds]
    table = np.ones((len(profiles), len(Quantile), stride), dtype=np.int64)
    for number, profile in enumerate(profiles):
        if profile is not None:
            table[number, :, : profile.max_batch + 1] = profile.table_ns
    match service:
        case Deterministic(quantile):
            base = deployment.quantile if quantile is None else quantile
            return ServiceArrays(Draw.NONE, table, int(base), np.zeros(1))
        case Lognormal(cv):
            sigma = float(np.sqrt(np.log1p(cv * cv)))
            return ServiceArrays(Draw.LOGNORMAL, table, Quantile.MEAN, np.array([sigma]))
        case Empirical(ratios) if ratios:
            return ServiceArrays(Draw.RATIOS, table, Quantile.MEAN, np.array(ratios))
        case Measured():
            laws, measured = service.laid_out(deployment)
            row = deployment.quantile if service.row is None else service.row
            return ServiceArrays(Draw.MEASURED, table, int(row), measured, laws, service.handoffs_ns)
        case Empirical():
            return ServiceArrays(Draw.QUANTILES, table, Quantile.MEAN, np.zeros(1))
