"""Twenty minutes at half of what the machine carries, with a change of the repository every five seconds: models swap
their files, an application comes and goes, a broken one lies there for a while. Memory does not grow, and no query
fails without a line in the log that says why.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.chaos.healthy import HealthyLoad, capacity, load
from benchmarks.harness import Benchmark
from benchmarks.serve_faults import balance, metrics, settled
from benchmarks.serving import every
from stretto.cli.started import started_server
from stretto.repository.read import zoo_folder

CHANGE_S, SAMPLE_S = 5.0, 2.0
MOST_MB_PER_MINUTE = 0.05
HALF = 0.5
FAILED = re.compile(r"failed on (\d+) queries")


def change(repository: Path, number: int) -> None:
    """One of three kinds in turn."""
    if number % 3 == 0:
        files = [repository / "fashion" / "variants" / name / "model.onnx" for name in ("mlp", "linear")]
        contents = [file.read_bytes() for file in files]
        for file, content in zip(files, reversed(contents), strict=True):
            part = file.with_suffix(".part")
            part.write_bytes(content)
            part.replace(file)
    elif number % 3 == 1:
        if (repository / "mnist").exists():
            shutil.rmtree(repository / "mnist")
        else:
            shutil.copytree(zoo_folder() / "mnist", repository / "mnist")
    else:
        broken = repository / "broken"
        if broken.exists():
            shutil.rmtree(broken)
        else:
            broken.mkdir()
            (broken / "app.toml").write_text("slo_ms = ")


def slope(samples: list[tuple[float, int]]) -> float:
    """MB a minute, by least squares over the second half."""
    times, sizes = np.array(samples[len(samples) // 2 :], np.float64).T
    return float(np.polyfit(times / 60, sizes / 1e6, 1)[0])


def soak(bench: Benchmark, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository, file = Path(folder) / "models", Path(folder) / "measured.npz"
        repository.mkdir()
        shutil.copytree(zoo_folder() / "fashion", repository / "fashion")
        arguments = [str(repository), "--workers", "2", "--executor", "process", "--reload-s", "1"]
        with started_server([*arguments, "--log-level", "warning"]) as server:
            rate = HALF * capacity(lambda rate, length_s, seed: load(server.url, rate, length_s, seed))
            healthy = HealthyLoad(server, rate, bench.seed, file)
            samples: list[tuple[float, int]] = []
            began, stop = time.monotonic(), threading.Event()
            with every(SAMPLE_S, lambda: samples.append((time.monotonic() - began, server.memory_bytes()))):
                for number in itertools.count():
                    if time.monotonic() - began >= seconds or stop.wait(CHANGE_S):
                        break
                    change(repository, number)
            measured = healthy.stop()
            found = settled(server, 2)
            failed = int(metrics(server).get("failed", 0))
            lines = [line for line in server.lines if FAILED.search(line)]
    ends = measured.within([(0, 2**62)])
    bench.row(part=f"soak, {seconds:g} s", rate=round(rate, 1), changes=number, **ends)
    for line in lines:
        bench.row(part="log", line=line)
    grown = slope(samples)
    target = f"≤ {MOST_MB_PER_MINUTE:g}"
    what = "memory of the server in the second half, MB a minute"
    bench.claim(what, paper="-", target=target, ours=grown, met=grown <= MOST_MB_PER_MINUTE)
    lost = balance(found)
    bench.claim("queries without an outcome", paper="-", target="0", ours=lost, met=lost == 0)
    unexplained = failed if not lines else 0
    bench.claim(
        "failed queries of which the log has no line", paper="-", target="0", ours=unexplained, met=not unexplained
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    bench = Benchmark("serve_soak", seed=arguments.seed)
    soak(bench, arguments.seconds)
    bench.finish()


if __name__ == "__main__":
    main()
