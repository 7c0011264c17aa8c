"""A thousand clients that come and go within a minute, against a live server that Jellyfish plans for.

Each has a link of its own with a bandwidth of its own, stays for some seconds, sends frames as it is told, and leaves
without a word. Plans must be made within their period, memory must not grow with the clients that have been there, and
every frame must have an outcome on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.request import urlopen

import numpy as np
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import Benchmark
from benchmarks.serving import every
from stretto.cli.demo_network import APPLICATION, SERVED
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client import AsyncFrameClient, FrameOutcome, StrettoClientError
from stretto.client.address import endpoint_of
from stretto.client.network import Link, Proxy
from stretto.core.bandwidth import BYTES_PER_MBIT, constant

CLIENTS = 1000
PERIOD_S = 0.5  # of Jellyfish's plans
SLO_MS = 150.0
FPS = 2.0
STAY_S = 4.0  # on average
LEAST_STAY_S, MOST_STAY_S = 1.0, 10.0
MBITS = 0.2, 5.0  # of a link, drawn evenly by their logarithm
FORGOTTEN_S = 5.0  # after the last frame nobody is remembered any more
MEMORY_MB = 8.0


@dataclass
class Tally:
    """What the clients saw."""

    made: int = 0
    sent: int = 0
    outcomes: Counter[FrameOutcome] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    joined: int = 0
    at_once: int = 0
    present: int = 0
    failed_to_join: int = 0


@dataclass(frozen=True)
class Books:
    """What the server counted; `within[edge]` are plans that took at most so many seconds."""

    submitted: float
    ended: float
    refused: float
    inside: float
    clients: float
    plans: float
    planning_s: float
    within: dict[float, float]


def books(server: Started) -> Books:
    with urlopen(f"{server.management_url}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
        samples = [sample for family in families for sample in family.samples]

    def total(*names: str) -> float:
        return sum(sample.value for sample in samples if sample.name in names)

    return Books(
        total("stretto_queries_submitted_total"),
        total("stretto_queries_ended_total"),
        total("stretto_requests_refused_total"),
        total("stretto_queue_depth", "stretto_queries_running"),
        total("stretto_clients"),
        total("stretto_planning_seconds_count"),
        total("stretto_planning_seconds_sum"),
        {
            float(sample.labels["le"]): sample.value
            for sample in samples
            if sample.name == "stretto_planning_seconds_bucket"
        },
    )


async def come_and_go(server: Started, clients: int, seconds: float, seed: int) -> Tally:
    """All of them, each from its own moment on."""
    tally = Tally()
    draws = np.random.default_rng(seed)
    inputs, _ = sample_of(APPLICATION)
    endpoint = endpoint_of(server.url)
    stays_s = np.clip(draws.exponential(STAY_S, clients), LEAST_STAY_S, min(MOST_STAY_S, seconds / 2))
    joins_s = draws.random(clients) * (seconds - stays_s)
    rates = np.exp(draws.uniform(*np.log(MBITS), clients)) * BYTES_PER_MBIT

    async def one(number: int) -> None:
        await asyncio.sleep(joins_s[number])
        link = Link(constant(float(rates[number])))
        tally.present += 1
        tally.at_once = max(tally.at_once, tally.present)
        try:
            async with Proxy(endpoint.host, endpoint.port, link) as proxy:
                url = f"http://127.0.0.1:{proxy.port}"
                async with AsyncFrameClient(url, APPLICATION, slo_ms=SLO_MS, client_id=f"camera {number}") as client:
                    tally.joined += 1
                    await film(client, float(stays_s[number]), number)
        except StrettoClientError:
            tally.failed_to_join += 1
        finally:
            tally.present -= 1

    async def film(client: AsyncFrameClient, stay_s: float, number: int) -> None:
        asking = []
        end_s = time.monotonic() + stay_s
        while time.monotonic() < end_s:
            tally.made += 1
            image = inputs[(number + len(asking)) % len(inputs)]
            asking.append(asyncio.create_task(client.send(image, time.monotonic_ns())))
            await asyncio.sleep(1 / FPS)
        for frame in await asyncio.gather(*asking):
            tally.outcomes[frame.outcome] += 1
            tally.sent += frame.sent_bytes > 0
            if frame.error is not None and frame.outcome is FrameOutcome.REFUSED:
                tally.refusals[frame.error.reason] += 1

    await asyncio.gather(*(one(number) for number in range(clients)))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    arguments = parser.parse_args()
    bench = Benchmark("jellyfish_clients")
    with started_server(SERVED) as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # As many at a time as later, so that memory has grown to what they take.
        share = min(1.0, 15.0 / arguments.seconds)
        runner.run(come_and_go(server, round(arguments.clients * share), arguments.seconds * share, 7))
        before = books(server)
        memory: list[int] = []
        with every(1.0, lambda: memory.append(server.memory_bytes())):
            tally = runner.run(come_and_go(server, arguments.clients, arguments.seconds, bench.seed))
        time.sleep(FORGOTTEN_S)
        after = books(server)
    plans = after.plans - before.plans
    in_time = after.within[PERIOD_S] - before.within[PERIOD_S]
    quarter = max(1, len(memory) // 4)
    growth_mb = (np.median(memory[-quarter:]) - np.median(memory[quarter : 2 * quarter])) / 1e6
    ended = sum(tally.outcomes.values())
    submitted, refused = after.submitted - before.submitted, after.refused - before.refused
    lost = abs(tally.made - ended) + abs(tally.sent - submitted - refused)
    lost += abs(after.submitted - after.ended - after.inside)
    bench.row(
        clients=tally.joined,
        at_once=tally.at_once,
        frames=tally.made,
        sent=tally.sent,
        on_time=tally.outcomes[FrameOutcome.ON_TIME] / max(1, tally.made),
        refused=sum(tally.refusals.values()),
        taken_in=submitted,
        plans=plans,
        mean_plan_ms=1e3 * (after.planning_s - before.planning_s) / max(1, plans),
        plans_within_100_ms=after.within[0.1] - before.within[0.1],
        memory_mb=float(np.median(memory)) / 1e6,
        memory_growth_mb=float(growth_mb),
        remembered=after.clients,
    )
    bench.claim(
        f"clients that came and went in {arguments.seconds:g} s",
        paper="-",
        target=f"{arguments.clients}, none failed",
        ours=tally.joined,
        met=tally.joined == arguments.clients and not tally.failed_to_join,
    )
    bench.claim(
        f"plans made within their {PERIOD_S:g} s",
        paper="-",
        target="all",
        ours=in_time / max(1, plans),
        met=plans > 0 and in_time == plans,
    )
    least = 0.9 * arguments.seconds / PERIOD_S
    bench.claim("plans made", paper="-", target=f"≥ {least:.0f}", ours=plans, met=plans >= least)
    bench.claim(
        "memory, last quarter over the second, MB",
        paper="-",
        target=f"≤ {MEMORY_MB:g} (flat)",
        ours=float(growth_mb),
        met=growth_mb <= MEMORY_MB,
    )
    bench.claim("frames and queries without an outcome", paper="-", target="0", ours=lost, met=lost == 0)
    bench.claim(
        f"clients remembered {FORGOTTEN_S:g} s after the last",
        paper="-",
        target="0",
        ours=after.clients,
        met=after.clients == 0,
    )
    bench.finish()


if __name__ == "__main__":
    main()
