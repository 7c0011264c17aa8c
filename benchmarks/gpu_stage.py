"""What the parts of gpu_serve share: what is served how, and a stage with clients, servers and the result."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_load import Clients, Drive, Measured
from benchmarks.gpu_models import (
    Photos,
    best_throughput,
    ensure_profiled,
    profiles,
    torchvision_networks,
    write_photos,
)
from benchmarks.harness import Benchmark
from benchmarks.serve_faults import metrics
from stretto.cli.started import Started, started_server

NETWORKS = ("resnet18", "resnet50", "resnet152", "convnext_tiny")
ALONE = "resnet50"
HOLDS = 0.99  # of requests on time, for a load to count as carried
RESTART_S = 60.0  # the longest that a killed worker may take to be back
WITHOUT = ("ladder", "overlap", "graphs")
WITHOUT_VARIABLE = "STRETTO_GPU_WITHOUT"


class LeftOut(Exception):
    """A part that cannot be run here; it says why."""


@dataclass(frozen=True)
class Setup:
    """What is served how; the defaults are the issue's, a test has smaller ones."""

    work: Path
    ladder: Path | None = None  # the folder of fashion_gpu, as training.gpu makes it
    serve: tuple[str, ...] = ("--device", "cuda")
    profile: tuple[str, ...] = ("--device", "cuda", "--budget-s", "4", "--no-judge")
    photos: Photos = field(default_factory=lambda: Photos("photos", torchvision_networks(NETWORKS)))
    floats: Photos = field(default_factory=lambda: Photos("photos_float32", torchvision_networks([ALONE]), "float32"))
    onnx: Photos = field(
        default_factory=lambda: Photos("photos_onnx", torchvision_networks(["resnet18", ALONE]), backend="onnx")
    )
    alone: str = ALONE
    killed: str = NETWORKS[0]  # quick to load again
    rates: tuple[float, ...] = (200, 2000, 4000, 500, 3000, 1000)  # by twos on a fresh server
    float_rates: tuple[float, ...] = (1750, 2000, 2400)
    onnx_rates: tuple[float, ...] = (1000, 3000)
    shares: tuple[float, ...] = (0.8, 0.86, 0.9, 0.94, 0.98)  # of the graphs' own throughput
    compare_rates: tuple[float, ...] = (1000, 4000)
    kill_rate: float = 1000
    kills: int = 10
    rows: int = 8
    seconds: float = 6.0
    ladder_seconds: float = 7.5  # three bursts
    curve_shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)  # of what the fastest variant carries
    curve_seconds: float = 2.5
    warm_rate: float = 1500
    warm_seconds: float = 2.0
    gpu_memory_mb: Callable[[], float] | None = None

    def repository(self, photos: Photos) -> Path:
        return self.work / photos.dtype

    def file(self, photos: Photos) -> Path:
        return self.repository(photos) / f"{photos.name}.npz"


@dataclass
class Stage:
    """One run of the benchmark: where results go, the clients, and what is served."""

    bench: Benchmark
    clients: Clients
    setup: Setup
    part: str = ""
    warmed: set[str] = field(default_factory=set)  # applications whose bodies clients have sent before

    def row(self, **values: Any) -> None:
        self.bench.row(part=self.part, **values)
        told = " · ".join(f"{key} {value}" for key, value in self.bench.rows[-1].items() if value != "")
        print(told, flush=True)

    def claim(self, what: str, target: str, ours: float, met: bool) -> None:
        self.bench.claim(f"{self.part}: {what}", paper="—", target=target, ours=ours, met=met)
        print(f"{'met' if met else 'NOT MET'}: {self.part}: {what}: {ours:.5g} (target {target})", flush=True)

    def ready(self, photos: Photos, warms: bool = True) -> Path:
        """The application's folder, exported and profiled; and clients that have sent such bodies before."""
        repository = self.setup.repository(photos)
        write_photos(photos, repository, self.setup.work / "programs")
        folder = self.profiled(repository / photos.name)
        if warms and photos.name not in self.warmed:
            self._warm(folder, photos)
        return folder

    def _warm(self, folder: Path, photos: Photos) -> None:
        """One load that does not count, on a server that ends with it. On a virtual machine whose memory nobody has
        used yet, the first second of large bodies goes to the pages of its sockets, whatever is served: p50 400 ms,
        where every server that is started after it has 3 ms from its first request on.
        """
        self.warmed.add(photos.name)
        with self.served(folder, "--variant", photos.networks[0].name) as server:
            seen = self.load(server, photos, self.setup.warm_rate, seconds=self.setup.warm_seconds)
        self.row(warmed=photos.name, rate=self.setup.warm_rate, **seen.row())

    def profiled(self, folder: Path) -> Path:
        took_s = ensure_profiled(folder, self.setup.profile)
        if took_s:
            for name, stored in profiles(folder).items():
                rate, size = best_throughput(stored)
                points = {size: point.p50 for size, point in stored.batches.items()}
                first, last = min(points), max(points)
                self.bench.row(
                    part="profile",
                    application=folder.name,
                    variant=name,
                    best_images_s=rate,
                    at_batch=size,
                    load_ms=stored.load_ms,
                    **{f"l({first}) p50 ms": points[first], f"l({last}) p50 ms": points[last]},
                )
            print(f"stretto profile {folder.name}: {took_s:.1f} s", flush=True)
            self.bench.row(part="profile", application=folder.name, seconds=took_s)
        return folder

    @contextlib.contextmanager
    def served(self, folder: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Started]:
        """A fresh server with its defaults."""
        began = time.monotonic()
        command = [str(folder), *self.setup.serve, "--log-level", "warning", *arguments]
        with started_server(command, prefix=prefix) as server:
            self.start_s = time.monotonic() - began
            try:
                yield server
            finally:
                for line in [line for line in server.lines if "WARN" in line or "ERROR" in line][:5]:
                    self.row(said=line[:300])

    def load(self, server: Started, photos: Photos, rate: float, **more: Any) -> Measured:
        seconds = more.pop("seconds", self.setup.seconds)
        drive = Drive(server.url, photos.name, self.setup.file(photos), seconds, rate, seed=self.bench.seed, **more)
        return self.clients.run(drive)


def wait_for_workers(server: Started, workers: int) -> float:
    """Seconds until as many workers are ready again, and nothing is open."""
    began = time.monotonic()
    while time.monotonic() < began + RESTART_S:
        found = metrics(server)
        if found["stretto_workers_ready"] >= workers and found["stretto_requests_open"] == 0:
            break
        time.sleep(0.1)
    return time.monotonic() - began


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """For processes that are started meanwhile; nothing where the value is empty."""
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def used_gpu_memory_mb() -> float:
    """On the first GPU, by whomever."""
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    else:
        code = "import torch; free, total = torch.cuda.mem_get_info(0); print((total - free) / 2**20)"
        command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])
