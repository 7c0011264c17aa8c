"""Arrival laws with independent stationary increments: the chance of k arrivals in a time T (RAMSIS section 3.1.1).

A law is asked by the expected count λT. Among counting processes only compound Poisson ones have independent stationary
increments. The gamma law is therefore a Poisson process whose intensity is itself a gamma process: counts are negative
binomial. A renewal process with gamma gaps, as the simulator has it, has no independent increments; it has the same
variance of counts over long times and less over short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError

LEAST_SHAPE = 1e-3
NEARLY_POISSON = 0.999  # from this shape on, differences of log Γ would lose more than the law differs


class Law(Protocol):
    """How many queries arrive in an interval."""

    @property
    def name(self) -> str:
        """For people and for the file of policies; laws of one name are the same law."""
        ...

    @property
    def dispersion(self) -> float:
        """Variance of a count over its mean."""
        ...

    def log_probability(self, counts: NDArray[np.int64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """log PF(counts, T) where `mean` = λT are expected; the two are broadcast. Mean 0: surely none."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals."""

    name: ClassVar[str] = "poisson"
    dispersion: ClassVar[float] = 1.0

    def log_probability(self, counts: NDArray[np.int64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.special import gammaln  # here, because a server that solves nothing need not load it

        with np.errstate(divide="ignore", invalid="ignore"):
            log = counts * np.log(mean) - mean - gammaln(counts + 1.0)
        return np.where(np.asarray(mean) > 0, log, np.where(counts == 0, 0.0, -np.inf))


@dataclass(frozen=True)
class Gamma:
    """Bursty arrivals: counts have 1/shape times the variance of Poisson counts, like gamma gaps of that shape."""

    shape: float

    def __post_init__(self) -> None:
        if not LEAST_SHAPE <= self.shape <= 1:
            raise StrettoError(
                f"the shape of a gamma law is {self.shape}; it must be between {LEAST_SHAPE:g} and 1, because no"
                " arrivals with independent increments are smoother than Poisson ones (take Poisson there: it is safe)"
            )

    @property
    def name(self) -> str:
        return f"gamma:{self.shape!r}"

    @property
    def dispersion(self) -> float:
        return 1.0 / self.shape

    def log_probability(self, counts: NDArray[np.int64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.special import gammaln  # here, because a server that solves nothing need not load it

        if self.shape >= NEARLY_POISSON:
            return Poisson().log_probability(counts, mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            order = mean * (self.shape / (1 - self.shape))
            log = gammaln(counts + order) - gammaln(order) - gammaln(counts + 1.0)
            log = log + order * np.log(self.shape) + counts * np.log1p(-self.shape)
        return np.where(np.asarray(mean) > 0, log, np.where(counts == 0, 0.0, -np.inf))


def law_of_shape(shape: float) -> Law:
    """Gamma, or Poisson where the shape is one."""
    return Poisson() if shape == 1 else Gamma(shape)


def probabilities(law: Law, counts: int, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """PF(0 … counts − 1) for each mean: an array [mean, count]."""
    return np.exp(law.log_probability(np.arange(counts), np.asarray(mean, dtype=np.float64)[:, None]))


def largest_count(law: Law, mean: float) -> int:
    """A count that is exceeded with a chance below about 1e-14."""
    spread = law.dispersion
    return int(mean + 9.0 * np.sqrt(mean * spread) + 40.0 * spread) + 1
