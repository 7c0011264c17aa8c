"""Conditions to judge under, written down: arrivals of one law at rates that are known, and noisy service."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.sim.arrivals import Load, Source, Weights
from stretto.sim.processes import Poisson, Process
from stretto.sim.service import Lognormal, Service


@dataclass(frozen=True)
class Steady:
    """Each application has its rate, in queries/s."""

    rates: tuple[float, ...]
    process: Process = field(default_factory=Poisson)
    noise: float = 0.1
    delays: Delays = field(default_factory=Delays)

    def source(self, factor: float) -> Source:
        return Load(self.process, factor * sum(self.rates), Weights(self.rates))

    def service(self) -> Service:
        return Lognormal(self.noise)


def two_kinds() -> Deployment:
    """Two applications of two variants; the slow workers take three times as long."""

    def variant(name: str, accuracy: float, alpha: float, beta: float) -> Variant:
        slower = LatencyProfile.linear(3 * alpha, 3 * beta, 16, "slow")
        return Variant(name, accuracy, (LatencyProfile.linear(alpha, beta, 16, "fast"), slower))

    variants = (variant("quick", 0.6, 0.5, 1.5), variant("good", 0.8, 1.0, 4.0))
    applications = tuple(Application(name, 100 * NS_PER_MS, variants) for name in ("first", "second"))
    return Deployment(applications, workers(2, "fast") + workers(2, "slow"))
