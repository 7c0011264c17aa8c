"""Stretches and settings for tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.sim.residuals import Residuals
from stretto.twin.classes import Labelled
from stretto.twin.setting import Setting
from stretto.twin.stretch import REQUEST, ArrivalStretch

SLO_NS = 100 * NS_PER_MS


def deployment(*names: str) -> Deployment:
    profile = LatencyProfile.linear(0.1, 1.0, 16)
    return Deployment(
        tuple(Application(name, SLO_NS, (Variant("v", 0.9, (profile,)),), classes=3) for name in names), workers(2)
    )


def requests_at(
    times_ns: NDArray[np.int64], rows: NDArray[np.int64] | int = 1, slack_ns: int = 50 * NS_PER_MS
) -> NDArray[np.void]:
    requests = np.zeros(len(times_ns), dtype=REQUEST)
    requests["offset_ns"], requests["rows"], requests["slack_ns"], requests["client"] = times_ns, rows, slack_ns, -1
    return requests


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return np.sort(random.random(random.poisson(rate * seconds)) * seconds * NS_PER_S).astype(np.int64)


def bursty(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
    """On for 50 ms and off for 150 ms, in the mean."""
    random = np.random.default_rng(seed)
    times, now_s = [np.zeros(0)], 0.0
    while now_s < seconds:
        on_s = random.exponential(0.05)
        times.append(now_s + np.sort(random.random(random.poisson(4 * rate * on_s))) * on_s)
        now_s += on_s + random.exponential(0.15)
    together = np.concatenate(times)
    return (together[together < seconds] * NS_PER_S).astype(np.int64)


def stretch(kind: str, rate: float = 200.0, seconds: float = 60.0, seed: int = 1) -> ArrivalStretch:
    times_ns = (bursty if kind == "bursty" else poisson)(rate, seconds, seed)
    rows = np.random.default_rng(seed).choice([1, 2, 8], len(times_ns), p=[0.8, 0.1, 0.1])
    return ArrivalStretch.of(requests_at(times_ns, rows), round(seconds * NS_PER_S), (0.5, 0.2))


def whole_setting() -> Setting:
    """With something of everything."""
    random = np.random.default_rng(2)
    return Setting(
        arrivals={"a": stretch("bursty"), "b": ArrivalStretch(3.5), "c": ArrivalStretch(0.0)},
        residuals={
            ("a/v", "default"): Residuals({0: random.lognormal(0, 0.2, 200), 3: random.lognormal(0, 0.1, 50)}),
            ("b/v", "cuda:0"): Residuals({1: np.array([1.25])}),
        },
        delays=Delays(control_ns=300_000, timer_ns=1_000_000),
        present={"default": 2, "cuda:0": 0},
        handoff_ns=random.integers(0, 10**6, 100),
        overrun_ns=random.integers(-(10**6), 10**6, 100),
        networks={3: (12.5, 11.0), 9: (100.0,)},
        row=Quantile.MEAN,
        ladders={"a": ("quick", "v", "slow"), "b": ("v",)},
        evidence={
            "a": Labelled(random.dirichlet(np.ones(3), 40), random.integers(0, 3, 40), random.uniform(0.5, 2.0, 40))
        },
    )
