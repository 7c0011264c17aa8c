"""What every benchmark shares: claims and rows, the table on the screen, the committed JSON, and common deployments.

A claim is computed, never typed in: `what`, what the paper reports, what we aim for, what we measured, and whether that
meets the aim. Run one with `make bench NAME=…`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.published import PublishedModel
from stretto.core.view import Planner
from stretto.core.worker import workers
from stretto.sim.arrivals import Source
from stretto.sim.goodput import find_goodput
from stretto.sim.results import Summary
from stretto.sim.simulator import simulate

RESULTS = Path(__file__).parent / "results"


@dataclass
class Benchmark:
    """Collects claims and rows, then prints and writes them."""

    name: str
    seed: int = 1
    claims: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    # Wide enough for the tables where the output goes to a file.
    console: Console = field(default_factory=lambda: Console(width=None if sys.stdout.isatty() else 180))

    def claim(self, what: str, *, paper: Any, target: str, ours: float | str, met: bool) -> None:
        """One line of the verdict."""
        self.claims.append({"what": what, "paper": paper, "target": target, "ours": rounded(ours), "met": bool(met)})

    def band(self, what: str, *, paper: Any, between: tuple[float, float], ours: float) -> None:
        """A claim against a paper's value: ours is neither below nor above a band around it."""
        least, most = between
        self.claim(what, paper=paper, target=f"{least:.4g} to {most:.4g}", ours=ours, met=least <= ours <= most)

    def row(self, **values: Any) -> None:
        """One measured point."""
        self.rows.append({key: rounded(value) for key, value in values.items()})

    def steps(self, items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
        """Go through `items` with a progress bar on a terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            for item in items:
                yield item
                progress.advance(task)

    def at_once(self, measure: Callable[[Any], Any], items: Sequence[Any], what: str) -> list[Any]:
        """What `measure` says of each item, in their order; all cores measure, in processes of their own."""
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            return list(self.steps(pool.map(measure, items), len(items), what))

    def finish(self) -> None:
        """Print the tables and write results/NAME.json."""
        result = self.write()
        self.show()
        self.console.print(f"{result['seconds']} s · seed {self.seed} · {result['command']} → results/{self.name}.json")

    def write(self) -> dict[str, Any]:
        """results/NAME.json, as far as it is known."""
        result = {
            "name": self.name,
            "command": f"make bench NAME={self.name}",
            "seed": self.seed,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "seconds": round(time.perf_counter() - self.started, 1),
            "claims": self.claims,
            "rows": self.rows,
        }
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return result

    def show(self) -> None:
        """Print the tables."""
        for title, rows in ((self.name, self.rows), ("claims", self.claims)):
            if rows:
                self.console.print(_table(title, rows))


def rounded(value: Any) -> Any:
    """Five significant digits, so that files stay small and reruns compare."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return float(f"{value:.5g}")


def _table(title: str, rows: Sequence[dict[str, Any]]) -> RichTable:
    table = RichTable(title=title)
    names = list(dict.fromkeys(key for row in rows for key in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(name, "")) for name in names))
    return table


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:g}" if isinstance(value, float) else str(value)


def like(profile: LatencyProfile, slo_ms: float, count: int, worker_count: int, accuracy: float = 1.0) -> Deployment:
    """`count` applications of one profile on `worker_count` equal workers."""
    applications = tuple(
        Application(f"app-{number}", int(slo_ms * NS_PER_MS), (Variant("only", accuracy, (profile,)),))
        for number in range(count)
    )
    return Deployment(applications, workers(worker_count))


def zoo(models: Iterable[PublishedModel], worker_count: int) -> Deployment:
    """One application per published model, with the paper's SLO."""
    applications = tuple(
        Application(model.name, int(model.slo_ms * NS_PER_MS), (Variant("only", 1.0, (model.profile(),)),))
        for model in models
    )
    return Deployment(applications, workers(worker_count))


def goodput(
    deployment: Deployment,
    planner: Planner,
    source: Callable[[float], Source],
    *,
    guess: float,
    seeds: Sequence[int],
    seconds: float,
    tolerance: float = 0.005,
    delays: Delays | None = None,
) -> float:
    """The highest rate that holds, as in sim.goodput."""

    def run(rate: float, seed: int) -> Summary:
        return simulate(deployment, planner, source(rate), seconds=seconds, seed=seed, delays=delays).summary

    return find_goodput(run, guess=guess, seeds=seeds, tolerance=tolerance).rate
