"""Clients behind networks for Jellyfish's benchmarks (section VI): traces, clients, the systems compared, one run each.

Clients join one after the other with 0.2 to 2 s between them (the paper: 1 to 10 s, in runs of minutes) and begin
anywhere in the trace. The way to the server takes 2 ms in either direction. Frames are made late by up to a tenth of
the time between two. Batches take as long as profiles spread them; plans rest on the p99. No LTE trace is at hand
(`jellyfish_traces` draws networks like it). Jellyfish is what a server serves, with its doors, and its clients follow
the rule of the client that ships; `published` is the planner's lanes as they are, without doors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from jellyfish_ground import APPLICATION, SIZES, deployment
from jellyfish_traces import DRAWN, SHARED

from stretto.core.bandwidth import Bandwidth, bandwidth_from
from stretto.core.client import Client, Network
from stretto.core.outcome import Outcome as Ended
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.core.view import Planner, View
from stretto.planners.clockwork import Clockwork
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.network.clients import Adaptation, NetworkClient, Sending
from stretto.sim.network.result import NetworkResult, NetworkSummary
from stretto.sim.network.run import simulate_network
from stretto.sim.network.strategies import data_adaptations
from stretto.sim.service import Empirical

TRACES = {"synthetic": ("network_synthetic.txt", 20.0), "wifi": ("network_wifi.txt", 1.0)}
SECONDS = 60.0
SEEDS = (11, 12, 13)  # those of the claims; what was chosen was chosen on 1 to 3
DELAY_NS = 2 * NS_PER_MS
JOIN_GAP_S = (0.2, 2.0)
JITTER = 0.1
LOW, MIDDLE, HIGH = (f"yolov4-{SIZES[place]}" for place in (0, 7, 15))
STATIC = {"B_L": LOW, "B_M": MIDDLE, "B_H": HIGH}
ADAPTATIONS = tuple(data_adaptations(MIDDLE))
WORKERS = 2
QUANTILES = (1, *range(5, 100, 5), 99, 99.9)  # of a distribution of latencies, in percent


@dataclass(frozen=True)
class Setting:
    """One of the 24 of section VI-B on a trace; `mixed` draws SLO and rate by client (heterogeneous clients)."""

    trace: str
    slo_ms: float
    fps: float
    clients: int
    workers: int = WORKERS
    mixed: bool = False
    models: int = len(SIZES)  # so many of them, the smallest

    def __str__(self) -> str:
        what = "mixed" if self.mixed else f"{self.slo_ms:g} ms, {self.fps:g} FPS"
        return f"{self.trace}, {what}, {self.clients} clients"


def settings(trace: str) -> list[Setting]:
    return [Setting(trace, slo, fps, n) for slo, fps, n in product((75.0, 100.0, 150.0), (15.0, 25.0), (1, 2, 4, 8))]


@cache
def trace(name: str) -> Bandwidth:
    if name in DRAWN:
        return DRAWN[name]()
    file, step_s = TRACES[name]
    return bandwidth_from((SHARED / file).read_text(encoding="ascii"), step_s=step_s)


def clients_of(setting: Setting, seed: int, sending: Sending | None = None) -> list[NetworkClient]:
    random = np.random.default_rng([seed, 0x1E11F])
    joins = np.cumsum(random.uniform(*JOIN_GAP_S, setting.clients))
    made = []
    for joins_s in joins.tolist():
        slo_ms = float(random.choice((75.0, 100.0, 150.0))) if setting.mixed else setting.slo_ms
        fps = float(random.choice((15.0, 25.0))) if setting.mixed else setting.fps
        bandwidth = trace(setting.trace)
        made.append(
            NetworkClient(
                APPLICATION,
                fps,
                bandwidth.shifted(int(random.uniform(0, bandwidth.period_ns))),
                round(slo_ms * NS_PER_MS),
                DELAY_NS,
                DELAY_NS,
                JITTER,
                joins_s=joins_s,
                sending=sending or Sending(),
            )
        )
    return made


def published() -> Jellyfish:
    """Without what is ours."""
    return Jellyfish(filling=False, annealing=True, step=5.0)


def system(name: str) -> tuple[Planner | Session, Sending]:
    """By the names of the paper's figures; `published` is Jellyfish without what we mended, and
    `jellyfish_pool` with one queue for all workers where that is more accurate. A session is followed as a server does.
    """
    if name in STATIC:
        variant = STATIC[name]
        return Clockwork({APPLICATION: variant}, filling=True), Sending(Adaptation.BANDWIDTH, variant)
    if name in ADAPTATIONS:
        strategy = data_adaptations(MIDDLE)[name]
        return strategy.plans(published()), strategy.sends
    if name.startswith("holding "):
        return served_session("jellyfish", {"resident": int(name.split()[1])}), Sending()
    if name == "published":
        return published(), Sending()
    return served_session(name), Sending()


def run(setting: Setting, name: str, seed: int, seconds: float | None = None) -> NetworkResult:
    planner, sending = system(name)
    resident = int(name.split()[1]) if name.startswith("holding ") else 0
    served = deployment(setting.workers, setting.slo_ms, resident, setting.models)
    clients = clients_of(setting, seed, sending)
    seconds = seconds or SECONDS
    return simulate_network(served, planner, clients, seconds=seconds, seed=seed, service=Empirical(), replan_s=0.5)


@dataclass(frozen=True)
class Outcome:
    """What is kept of a run."""

    summary: NetworkSummary
    switches: tuple[int, int]  # of a worker to another model: to one in memory, and to one that was not
    latency_ms: tuple[float, ...]  # of answers, from the making of the frame, at each of QUANTILES


def outcome(job: tuple[Setting, str, int]) -> Outcome:
    result = run(*job)
    ended = result.frames["outcome"]
    answered = result.frames[(ended >= 0) & (ended <= Ended.LATE)]
    latency_ms = (answered["answered_ns"] - answered["made_ns"]) / NS_PER_MS
    at = np.percentile(latency_ms, QUANTILES) if len(answered) else np.zeros(len(QUANTILES))
    return Outcome(result.summary, result.switches, tuple(at.tolist()))


def outcomes(jobs: Sequence[Any], work: Callable[[Any], Any] = outcome, processes: int | None = None) -> list[Any]:
    """In as many processes as there are cores, or so many; what comes out does not depend on that."""
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        return list(pool.map(work, jobs))


def can_be_mapped(setting: Setting) -> bool:
    """Whether the planner finds a place for every client while each has the lowest bandwidth of its trace."""
    served = deployment(setting.workers, setting.slo_ms, sizes=setting.models)
    network = Network(trace(setting.trace).least, 2 * DELAY_NS)
    clients = tuple(
        Client(slot, f"{slot}", 0, network, application=APPLICATION, rate=spec.fps, slo_ns=spec.slo_ns)
        for slot, spec in enumerate(clients_of(setting, 0))
    )
    rates = (sum(client.rate for client in clients),)
    plan = Jellyfish()(View(served, 0, expected_rates=rates, clients=lambda: clients))
    route = plan.routes[0]
    return all(plan.lanes[route.lanes[target]].capacity > 0 for target in route.targets)


def mean_of(found: Sequence[Outcome], what: str) -> float:
    return float(np.mean([getattr(each.summary, what) for each in found]))


SECOND = NS_PER_S
