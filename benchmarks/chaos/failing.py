"""A variant that fails while it serves, beside a healthy one: always or by chance, from a seed, until it is mended."""

from __future__ import annotations

import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.chaos.healthy import capacity
from benchmarks.harness import Benchmark
from benchmarks.small_models import CLASSES, SHAPE, Behaviour, write_application
from stretto.cli.started import Started, started_server
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load

APPLICATION, FAILING = "rows", "failing"
WORK = "time.sleep(0.002)"
SECOND_NS = 1_000_000_000
BACK_S = 200.0  # for the longest pause that a variant can have grown to within a minute
ON_TIME = 0.99


def _while_broken(flag: Path, seed: int, what: str, share: float = 1.0) -> Behaviour:
    draw = f"self.dice.random() < {share:g}"
    return Behaviour(
        f"self.dice = np.random.default_rng({seed})",
        f"{WORK}; is_broken = os.path.exists({str(flag)!r})\n        if is_broken and {draw}: {what}",
    )


RAISE = "raise RuntimeError('a model that is broken')"
NAN = f"return np.full((len(batch), {CLASSES}), np.nan, np.float32)"
WRONG = f"return np.zeros((len(batch), {CLASSES + 1}), np.float32)"
FAULTS: dict[str, Callable[[Path, int], Behaviour]] = {
    "raises always": lambda flag, seed: _while_broken(flag, seed, RAISE),
    "raises on 30% of its batches": lambda flag, seed: _while_broken(flag, seed, RAISE, 0.3),
    "answers with NaN": lambda flag, seed: _while_broken(flag, seed, NAN),
    "answers in another shape": lambda flag, seed: _while_broken(flag, seed, WRONG),
}


def send(server: Started, rate: float, seconds: float, seed: int) -> LoadResult:
    inputs = np.random.default_rng(seed).random((64, *SHAPE), np.float32)
    return run_load(LoadSpec(APPLICATION, inputs, url=server.url, rate=rate, seconds=seconds, seed=seed))


def is_ready(server: Started, variant: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/v2/models/{APPLICATION}/versions/{variant}/ready", timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def times_set_aside(server: Started) -> float:
    text = urllib.request.urlopen(f"{server.management_url}/metrics", timeout=10).read().decode()
    rows = [line for line in text.splitlines() if line.startswith("stretto_variant_quarantines_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in rows)


def failing(bench: Benchmark, seconds: float) -> None:
    """Each fault on a server of its own, at half of what the two variants carry together."""
    for what, behaviour in FAULTS.items():
        with tempfile.TemporaryDirectory() as name:
            folder, flag = Path(name) / "models", Path(name) / "broken"
            beside = {FAILING: behaviour(flag, bench.seed)}
            write_application(folder, APPLICATION, Behaviour(run=WORK), latency_ms=2.5, beside=beside)
            arguments = [str(folder), "--workers", "2", "--executor", "process", "--log-level", "error"]
            with started_server(arguments) as server:
                most = capacity(lambda rate, seconds, seed: send(server, rate, seconds, seed))
                flag.touch()
                result = send(server, most / 2, seconds, bench.seed)
                aside = times_set_aside(server)
                flag.unlink()
                began, is_back = time.monotonic(), False
                while not is_back and time.monotonic() < began + BACK_S:
                    time.sleep(0.2)
                    is_back = is_ready(server, FAILING)
                took_s = time.monotonic() - began
        later = result.outcome[result.scheduled_ns >= SECOND_NS]
        share = float((later == LoadOutcome.ON_TIME).mean()) if len(later) else 0.0
        ends = ", ".join(f"{end.name.lower()} {count}" for end in LoadOutcome if (count := int((later == end).sum())))
        seen = f"{most / 2:.4g} queries/s, half load; {ends}"
        bench.row(part=what, requests=len(later), on_time_share=share, seen=seen)
        bench.claim(
            f"beside a healthy variant, one that {what}: on time from the second second on, {seconds:g} s",
            paper="-",
            target=f"≥ {ON_TIME:g}",
            ours=share,
            met=share >= ON_TIME,
        )
        bench.claim(f"one that {what}: times set aside", paper="-", target="≥ 1", ours=aside, met=aside >= 1)
        bench.claim(
            f"one that {what}: served again after it is mended, s",
            paper="-",
            target=f"≤ {BACK_S:g}",
            ours=took_s if is_back else "never",
            met=is_back,
        )
