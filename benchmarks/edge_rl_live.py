"""Learned routing for real: a server of two quick and two careful instances, clients 40 ms away, bursts without notice.

Twenty-five cameras send frames over a link with a round trip of 40 ms, each in step with itself: 20 frames/s together
in lulls, 250 in bursts, of which the careful instances can answer 150. A frame counts as on time by its camera's clock,
from when it was made to when its answer is there. Served are the policy that was trained for these instances
(examples/edge/live.toml) and the one of the package. Models only wait, so that the run means the same on every machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from urllib.request import urlopen

import numpy as np
import uvloop
from harness import Benchmark
from prometheus_client.parser import text_string_to_metric_families
from quiet import when_quiet

from stretto.cli.started import Started, started_server
from stretto.client import AsyncFrameClient, FrameOutcome
from stretto.client.address import endpoint_of
from stretto.client.network import Link, Proxy
from stretto.core.bandwidth import BYTES_PER_MBIT, constant
from stretto.repository.machine import this_machine
from stretto.repository.model_code import code_sha256
from stretto.repository.profiles import MeasuredBatch, StoredProfile, profile_path, write_profile

ROOT = Path(__file__).parent.parent
TRAINED = ROOT / "examples" / "edge" / "live.safetensors"
APPLICATION, SLO_MS = "app", 150.0
MODELS = (("quick", "light", 4.0, 0.7), ("careful", "heavy", 13.0, 0.8))  # variant, kind of worker, ms, accuracy
OVERHEAD_MS = 1.0  # of a batch: models wait for so much less than they take
ONE_WAY_NS = 20_000_000
MBITS = 100.0
CAMERAS, LULL, BURST = 25, 20.0, 250.0  # frames/s of all cameras
WARM_UP_S, WAIT_S = 3.0, 0.3  # WAIT_S: of a burst, until the share of the heavy instances is looked at
LEAST_ON_TIME = 0.99
TRIES = 3
POLICIES = {"trained for these instances, each 0.05 s": TRAINED, "of the package, each 0.02 s": None}

APP = f"""\
slo_ms = {SLO_MS}

[input]
shape = [1, 8, 8]

[output]
name = "probabilities"
shape = [2]
"""
VARIANT = """\
backend = "callable"
code = "model:answer"
accuracy = {accuracy}
accuracy_source = "literature"
max_batch = 1
"""
MODEL = """\
import time

import numpy as np


def answer(rows):
    time.sleep({seconds})
    return np.full((len(rows), 2), 0.5, np.float32)
"""


def write_repository(root: Path) -> None:
    """Two models that wait, each with a profile on the workers of one kind alone."""
    folder = root / APPLICATION
    folder.mkdir(parents=True)
    (folder / "app.toml").write_text(APP)
    for name, kind, ms, accuracy in MODELS:
        variant = folder / "variants" / name
        variant.mkdir(parents=True)
        (variant / "model.py").write_text(MODEL.format(seconds=(ms - OVERHEAD_MS) / 1e3))
        (variant / "variant.toml").write_text(VARIANT.format(accuracy=accuracy))
        batches = {1: MeasuredBatch(ms, ms, ms, ms, 100, 0.01)}
        sha256 = code_sha256(variant, "model:answer")
        stored = StoredProfile(kind, this_machine(), "callable", 1, sha256, batches, 0.0, ms, 1_000_000)
        write_profile(profile_path(variant, kind), stored)


def arguments_for(root: Path, policy: Path | None) -> list[str]:
    """Of `stretto serve`."""
    workers = [part for _, kind, _, _ in MODELS for part in ("--worker", f"cpu*2,kind={kind}")]
    config = root / "serve.toml"
    chosen = "" if policy is None else f'policy = "{policy}"\n'
    config.write_text(f'[planner]\nname = "edge_rl"\n{chosen}')
    return [str(root), *workers, "--executor", "thread", "--config", str(config), "--log-level", "error"]


@dataclass
class Tally:
    """What the cameras saw, by phase of the frame."""

    outcomes: dict[str, Counter[FrameOutcome]] = field(default_factory=lambda: {"lull": Counter(), "burst": Counter()})
    heavy: dict[str, list[bool]] = field(default_factory=lambda: {"lull": [], "burst": []})
    latency_ms: list[float] = field(default_factory=list)

    def on_time(self, *phases: str) -> float:
        frames = sum((self.outcomes[phase] for phase in phases), Counter[FrameOutcome]())
        return frames[FrameOutcome.ON_TIME] / max(1, frames.total())


async def film(url: str, phases: Sequence[tuple[str, float]]) -> Tally:
    """All cameras through the phases, each of a name and seconds."""
    tally = Tally()
    endpoint = endpoint_of(url)
    link = Link(constant(MBITS * BYTES_PER_MBIT), None, ONE_WAY_NS, ONE_WAY_NS)
    image = np.zeros((1, 8, 8), np.float32)

    async def frame(client: AsyncFrameClient, phase: str, made_ns: int, is_settled: bool) -> None:
        did = await client.send(image, made_ns)
        tally.outcomes[phase][did.outcome] += 1
        if did.answer is not None:
            tally.latency_ms.append(did.latency_ms)
            if is_settled:
                tally.heavy[phase].append(did.answer.variant == MODELS[1][0])

    async def one(client: AsyncFrameClient, number: int, began_s: float) -> None:
        asking = []
        end_s = began_s
        for phase, seconds in phases:
            start_s, end_s = end_s, end_s + seconds
            every_s = CAMERAS / (LULL if phase == "lull" else BURST)
            for due_s in np.arange(start_s + every_s * number / CAMERAS, end_s, every_s).tolist():
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                is_settled = phase == "lull" or due_s > start_s + WAIT_S
                asking.append(asyncio.create_task(frame(client, phase, time.monotonic_ns(), is_settled)))
        await asyncio.gather(*asking)

    async with Proxy(endpoint.host, endpoint.port, link) as proxy:
        clients = [
            AsyncFrameClient(f"http://127.0.0.1:{proxy.port}", APPLICATION, slo_ms=SLO_MS, client_id=f"camera {number}")
            for number in range(CAMERAS)
        ]
        for client in clients:
            await client.start()
        try:
            began_s = time.monotonic()
            await asyncio.gather(*(one(client, number, began_s) for number, client in enumerate(clients)))
        finally:
            for client in clients:
                await client.close()
    return tally


def failed_plans(server: Started) -> float:
    """As the server counts them."""
    with urlopen(f"{server.management_url}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name in ("stretto_plans_failed", "stretto_plans_failed_total")
        )


def served(policy: Path | None, phases: Sequence[tuple[str, float]]) -> tuple[Tally, float]:
    """By a server of its own; what its cameras saw, and its plans that failed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_repository(root)
        with (
            started_server(arguments_for(root, policy)) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(film(server.url, [("lull", WARM_UP_S)]))
            return runner.run(film(server.url, phases)), failed_plans(server)


def main() -> None:
    """Both policies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each lull and of each burst")
    parser.add_argument("--bursts", type=int, default=3)
    given = parser.parse_args()
    phases = [("lull", given.seconds), ("burst", given.seconds)] * given.bursts
    bench = Benchmark("edge_rl_live")
    for name, policy in POLICIES.items():
        (tally, failed), stolen, _ = when_quiet(partial(served, policy, phases), TRIES)
        frames = sum(counts.total() for counts in tally.outcomes.values())
        others = sum(tally.outcomes.values(), Counter[FrameOutcome]())
        others.pop(FrameOutcome.ON_TIME, None)
        heavy = {phase: mean(shares or [0.0]) for phase, shares in tally.heavy.items()}
        bench.row(
            policy=name,
            frames=frames,
            on_time=tally.on_time("lull", "burst"),
            on_time_in_bursts=tally.on_time("burst"),
            heavy_in_lulls=heavy["lull"],
            heavy_in_bursts=heavy["burst"],
            p99_ms=float(np.quantile(tally.latency_ms, 0.99)) if tally.latency_ms else float("nan"),
            otherwise=", ".join(f"{count} {outcome}" for outcome, count in others.items()) or "-",
            plans_failed=failed,
            stolen=stolen,
        )
        on_time = tally.on_time("burst")
        what = f"policy {name}: frames of bursts on time, clients with a round trip of {2 * ONE_WAY_NS / 1e6:g} ms"
        bench.claim(what, paper=None, target=f"≥ {LEAST_ON_TIME:.0%}", ours=on_time, met=on_time >= LEAST_ON_TIME)
        bench.claim(f"policy {name}: plans that failed", paper=None, target="0", ours=failed, met=failed == 0)
        gap = 100 * (heavy["lull"] - heavy["burst"])
        what = f"policy {name}: more of lulls than of bursts at the careful instances, points"
        bench.claim(what, paper=None, target="> 0", ours=gap, met=gap > 0)
    bench.finish()


if __name__ == "__main__":
    main()
