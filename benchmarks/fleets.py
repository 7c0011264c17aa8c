"""Unequal workers: what the default planner makes of them, simulated as served and live, beside the fluid bound."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import measured_setting
from stretto.cli.queries import sample_of
from stretto.cli.started import started_server
from stretto.client.load import LoadOutcome, LoadSpec, run_load
from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.planning.served import served_session
from stretto.repository.read import read_repository, zoo_folder
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.ports import simulator_ports
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from stretto.twin.setting import Setting
from stretto.twin.spot import SpotJudge

SLOWER = 2.0
UNEQUAL = {"1 fast and 7 slow workers": (1, 7), "4 fast and 4 slow workers": (4, 4)}
APPLICATION = "fashion_resolution"
SHARE = 0.6  # of what the cheapest variants could answer
SECONDS, MEASURED_S = 60.0, 10.0
LIVE_S = 20.0
LIVE_RATE = 150.0
ONE, TWO = "cpu-one-thread", "cpu-two-threads"
LIVE_KINDS = "workers of one and of two threads"


def unequal(fast: int, slow: int) -> Deployment:
    """An application of the zoo on workers as profiled and on workers twice as slow."""
    measured, _ = read_repository(f"zoo:{APPLICATION}").deployment(1, Quantile.MEAN)
    (application,) = measured.applications
    variants = []
    for variant in application.variants:
        (profile,) = variant.profiles
        halved = LatencyProfile((profile.table_ns * SLOWER).astype(np.int64), "slow")
        variants.append(replace(variant, profiles=(replace(profile, kind="fast"), halved)))
    served = replace(application, variants=tuple(variants))
    return Deployment((served,), workers(fast, "fast") + workers(slow, "slow"), Quantile.MEAN)


def fleet_row(name: str, fleet: tuple[int, int], seed: int) -> dict[str, Any]:
    """The default planner as it is served, in simulation, at a part of what the fleet can carry."""
    deployment = unequal(*fleet)
    load = SHARE * most(deployment)

    def conditions(deployment: Deployment) -> Setting:
        """What ten seconds of the load, on another seed, would have told a server."""
        return measured_setting(deployment, Load(Poisson(), load), None, seconds=MEASURED_S, seed=seed + 1000)

    session = served_session(ports=replace(simulator_ports(), judge=SpotJudge(conditions)))
    result = simulate(
        deployment,
        session,
        Load(Poisson(), load),
        seconds=SECONDS,
        seed=seed,
        replan_s=session.rhythm.period_for(deployment),
        expected_rates=(0.0,),
    ).summary
    return {
        "what": name,
        "load": load,
        "correct_on_time": result.correct_on_time,
        "on_time": result.on_time_rate,
        "bound": fluid_accuracy(deployment, [load]).accuracy,
        "conserved": sum(result.outcomes.values()) == result.submitted,
    }


def most(deployment: Deployment) -> float:
    """Queries/s that all workers answer at most, each batch within the SLO."""
    slo_ns = deployment.applications[0].slo_ns
    total = 0.0
    for worker in deployment.workers:
        paces = []
        for variant in range(len(deployment.variants)):
            row = deployment.profile(variant, worker.kind).table_ns[deployment.quantile, 1:]
            sizes = np.arange(1, len(row) + 1)
            paces.append(float(np.where(row <= slo_ns, sizes / row, 0.0).max()))
        total += max(paces) * 1e9
    return total


def live_two_kinds(seed: int) -> dict[str, Any]:
    """Profiled and served for real: one worker with one thread, one with two."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        shutil.copytree(zoo_folder() / APPLICATION, root / APPLICATION)
        for kind, threads in ((ONE, 1), (TWO, 2)):
            command = [sys.executable, "-m", "stretto", "profile", str(root), "--in-place", "--kind", kind]
            subprocess.run([*command, "--threads", str(threads)], check=True, capture_output=True)
        fleet = ["--worker", f"cpu,kind={ONE}", "--worker", f"cpu,threads=2,kind={TWO}"]
        with started_server([str(root), *fleet, "--executor", "process", "--log-level", "error"]) as server:
            inputs, labels = sample_of(APPLICATION)
            spec = LoadSpec(APPLICATION, inputs, labels, url=server.url, rate=LIVE_RATE, seconds=LIVE_S, seed=seed)
            result = run_load(spec)
            busy_s = busy_seconds(server.management_url)
        served = read_repository(root)
        fleet_of_two = workers(1, ONE) + workers(1, TWO)
        deployment, _ = served.deployment(fleet_of_two, Quantile.MEAN)
    return {
        "what": f"live, {LIVE_KINDS}",
        "load": LIVE_RATE,
        "correct_on_time": float(result.correct_on_time.sum()) / len(result),
        "on_time": float((result.outcome == LoadOutcome.ON_TIME).mean()),
        "bound": fluid_accuracy(deployment, [LIVE_RATE]).accuracy,
        "least_busy_s": min(busy_s.values()),
    }


def busy_seconds(management_url: str) -> dict[str, float]:
    """By worker, as the server counts it."""
    with urllib.request.urlopen(f"{management_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    head = "stretto_worker_busy_seconds_total{"
    return {line.split('worker="')[1].split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(head)}
