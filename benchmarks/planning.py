"""One planning path: the same session plans in simulation and live; plans are cheap to adopt; every planner serves.

Everything live runs `stretto serve` in a process of its own on loopback, with its defaults unless a row says otherwise.
`benchmarks/start_up.py` measures compiling and starting. `make bench NAME=planning ARGS='--again clipper'` measures one
live row once more, and says so there; `ARGS=--but-live` measures all but these rows, which stay as they were.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.adopt_speed import adopt_ms, reroute_ms
from benchmarks.fleets import LIVE_KINDS, UNEQUAL, fleet_row, live_two_kinds
from benchmarks.harness import RESULTS, Benchmark
from benchmarks.quiet import when_quiet
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load
from stretto.planners.parts.choose import choose_variants
from stretto.planners.registry import NAMES
from stretto.repository.read import read_repository, zoo_folder
from stretto.sim.replay import replay

ROOT = Path(__file__).parent.parent
SECONDS = 20.0  # of each planner
WORKERS = "4"  # one for each application: some planners share none
RECORDED_S = 15.0
THIRD = 1 / 3
REQUEST_S = 0.4e-3  # what a request costs around its run, on the core that the worker also needs
CHANGES = 1000
BEFORE_LINES = 10_100
ON_TIME = 0.99
# When the planning path was made, and the folders that it replaced or added: what came later adds to them too.
MADE_BY = "e8857bf"
OF_JUDGED_PLANS = (
    *("planners/proteus", "planners/slackfit", "planners/joint", "planners/parts/fluid"),
    *("planners/judged", "planners/candidates", "live/judging"),
)  # that were there by then
FOLDERS = ("planners", "live", "planning")


SERVED_LIVE = "served live on the zoo at a third of capacity"


def main(but_live: bool = False) -> None:
    bench = Benchmark("planning")
    identical_plans(bench)
    adoption(bench)
    if but_live:
        keep_live(bench)
    else:
        every_planner(bench)
    changes_under_traffic(bench)
    unequal_fleets(bench)
    lines(bench)
    bench.finish()


# -- the same plans --------------------------------------------------------------------------------------------------


def identical_plans(bench: Benchmark) -> None:
    """Recorded live: bursts, pinned requests, a changed repository; then the log goes through a fresh session."""
    for planner in ("judged", "shared_queue", "priced", "ramsis", "sneakpeek"):
        with tempfile.TemporaryDirectory() as folder:
            repository, log = Path(folder) / "models", Path(folder) / "events.jsonl"
            for name in ("fashion", "mnist"):
                shutil.copytree(zoo_folder() / name, repository / name)
            arguments = [str(repository), "--planner", planner, "--workers", "2", "--record", str(log)]
            with started_server([*arguments, "--reload-s", "0.5", "--log-level", "error"]) as server:
                loads = [
                    load_spec(server, "fashion", kind="burst:40:300:2:0.3", seed=bench.seed),
                    load_spec(server, "mnist", kind="poisson", rate=60.0, seed=bench.seed + 1),
                    load_spec(server, "fashion", kind="poisson", rate=20.0, version="cnn_m", seed=bench.seed + 2),
                ]
                threads = [threading.Thread(target=run_load, args=(spec,)) for spec in loads]
                for thread in threads:
                    thread.start()
                time.sleep(RECORDED_S / 2)
                (repository / "mnist" / "app.toml").touch()
                for thread in threads:
                    thread.join()
            result = replay(log)
        bench.row(
            part="replay",
            planner=planner,
            plans=result.plans,
            decisions=result.decisions,
            dispatchers=result.dispatchers,
            different=result.difference_count,
        )
        bench.claim(
            f"{planner}: a recorded live run's telemetry through the same session in simulation",
            paper="",
            target="every plan identical, and every decision",
            ours=f"{result.difference_count} of {result.plans} plans and {result.decisions} decisions different",
            met=result.is_identical and result.plans > 0 and result.decisions > 0 and result.dispatchers > 1,
        )


def load_spec(server: Started, name: str, *, seconds: float = RECORDED_S, **more: object) -> LoadSpec:
    inputs, labels = sample_of(name)
    return LoadSpec(name, inputs, labels, url=server.url, seconds=seconds, **more)  # type: ignore[arg-type]


# -- adopting a plan -------------------------------------------------------------------------------------------------


def adoption(bench: Benchmark) -> None:
    """CPU time of adopting four large tables with 5,000 queries waiting, and of other weights for 64 lanes."""
    for what, spent, most in (
        ("adopt, 4 tables of 2049 × 65, 5,000 queries waiting", adopt_ms(4, 5_000), 2.0),
        ("reroute, 64 weighted lanes", reroute_ms(64), 0.1),
    ):
        ours = statistics.median(spent)
        bench.row(part="adopt", what=what, cpu_ms=ours, least_ms=min(spent), most_ms=max(spent))
        bench.claim(f"{what}, CPU ms", paper="", target=f"≤ {most:g}", ours=ours, met=ours <= most)


# -- every planner, served -------------------------------------------------------------------------------------------


def every_planner(bench: Benchmark, names: tuple[str, ...] = NAMES) -> None:
    """A run during which the host took time away is measured again; see benchmarks/quiet.py. Four workers share the
    machine's cores with the server and the clients: capacity is that of one worker with a core to itself.
    """
    rates = third_of_capacity()
    for planner in bench.steps(names, len(names), "planners"):

        def measure(planner: str = planner) -> list[LoadResult]:
            arguments = ["zoo", "--planner", planner, "--workers", WORKERS, "--log-level", "error"]
            with started_server(arguments) as server:
                return run_all([
                    load_spec(server, name, seconds=SECONDS, kind="poisson", rate=rate, seed=bench.seed)
                    for name, rate in rates.items()
                ])  # fmt: skip

        results, stolen, tries = when_quiet(measure)
        asked = sum(map(len, results))
        on_time = sum(int((result.outcome == LoadOutcome.ON_TIME).sum()) for result in results) / asked
        right = sum(int(result.correct_on_time.sum()) for result in results) / asked
        bench.row(
            part="live",
            planner=planner,
            requests=asked,
            on_time=on_time,
            correct_on_time=right,
            stolen_of_a_core=stolen,
            tries=tries,
        )
        bench.claim(
            f"{planner}, {SERVED_LIVE}, {SECONDS:g} s",
            paper="",
            target=f"≥ {ON_TIME:.0%} on time",
            ours=on_time,
            met=on_time >= ON_TIME,
        )


def keep_live(bench: Benchmark) -> None:
    before = json.loads((RESULTS / "planning.json").read_text(encoding="utf-8"))
    bench.rows += [row for row in before["rows"] if row["part"] == "live"]
    bench.claims += [claim for claim in before["claims"] if SERVED_LIVE in claim["what"]]


def again(names: tuple[str, ...]) -> None:
    """Live rows of new planners, and those measured once more because the host had taken the machine away in every
    try; the rest stays.
    """
    before = json.loads((RESULTS / "planning.json").read_text(encoding="utf-8"))
    bench = Benchmark("planning", started=time.perf_counter() - before["seconds"])
    every_planner(bench, names)
    shares = {row["planner"]: row["on_time"] for row in before["rows"] if row["part"] == "live"}
    rows = {row["planner"]: row | {"on_time_before": shares.get(row["planner"])} for row in bench.rows}
    claims = {claim["what"]: claim for claim in bench.claims}
    bench.rows = [rows.get(row.get("planner", ""), row) if row["part"] == "live" else row for row in before["rows"]]
    bench.claims = [claims.get(claim["what"], claim) for claim in before["claims"]]
    known = {row.get("planner") for row in before["rows"]}
    bench.rows += [row for name, row in rows.items() if name not in known]
    bench.claims += [claim for what, claim in claims.items() if what not in {each["what"] for each in before["claims"]}]
    bench.finish()


def third_of_capacity() -> dict[str, float]:
    """Requests/s of each application of the zoo: the same share of worker time each, a third of one worker in all, by
    the variant that a planner with one variant takes.
    """
    deployment, _ = read_repository("zoo").deployment(1)
    chosen = choose_variants(deployment)
    share = THIRD / len(chosen)
    return {
        application.name: share / (deployment.profile(variant).latency_ns(1) / 1e9 + REQUEST_S)
        for application, variant in zip(deployment.applications, chosen, strict=True)
    }


def run_all(specs: list[LoadSpec]) -> list[LoadResult]:
    """All at once, each in a thread; the generators themselves are processes of their own."""
    results: list[LoadResult] = []
    threads = [threading.Thread(target=lambda spec=spec: results.append(run_load(spec))) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- changes under traffic -------------------------------------------------------------------------------------------


def changes_under_traffic(bench: Benchmark) -> None:
    """Two applications load and unload all the time, from two threads, while replanning goes on and queries come."""
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for name in ("mnist", "activity", "fashion"):
            shutil.copytree(zoo_folder() / name, repository / name)
        arguments = [str(repository), "--planner", "shared_queue", "--replan-ms", "20", "--workers", "1"]
        with started_server([*arguments, "--log-level", "error"]) as server:
            with background_load(server, "fashion", 60.0, bench.seed) as results:
                began = time.perf_counter()
                threads = [
                    threading.Thread(target=change, args=(server, name, CHANGES // 2, failed))
                    for name in ("mnist", "activity")
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                took_s = time.perf_counter() - began
            counted = counters(server)
            errors = [line for line in server.lines if "Traceback" in line]
    for text in (*failed, *errors)[:5]:  # so that whoever reruns this sees why
        bench.console.print(text)
    outcomes = np.concatenate([result.outcome for result in results])
    broken = int((outcomes > LoadOutcome.OVERLOADED).sum())  # neither answered nor refused in time
    lost = round(counted["queries_submitted"] - counted["queries_ended"])
    plans_failed = round(counted["plans_failed"])
    sent = len(outcomes)
    row = {"calls": CHANGES, "failed": len(failed), "plans_failed": plans_failed, "seconds": took_s}
    on_time = float((outcomes == LoadOutcome.ON_TIME).mean())
    bench.row(part="changes", **row, requests=sent, on_time=on_time, broken=broken, lost=lost)
    bench.claim(
        f"two threads, {CHANGES} repository changes under traffic and replanning each 20 ms",
        paper="22 of 120 failed before",
        target="no failed call or plan, no lost query",
        ours=f"{len(failed)} failed calls, {plans_failed} failed plans, {broken} failed and {lost} lost of {sent}",
        met=not (failed or errors or plans_failed or broken or lost) and sent > 0,
    )


def change(server: Started, name: str, count: int, failed: list[str]) -> None:
    for turn in range(count):
        address = f"{server.management_url}/v2/repository/models/{name}/{('unload', 'load')[turn % 2]}"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, b"{}", method="POST"), timeout=60):
                pass
        except OSError as error:
            failed.append(f"{address}: {error}")


@contextmanager
def background_load(server: Started, name: str, rate: float, seed: int) -> Iterator[list[LoadResult]]:
    """Loads of five seconds, one after another, while the body runs."""
    results: list[LoadResult] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            spec = load_spec(server, name, seconds=5.0, kind="poisson", rate=rate, seed=seed + len(results))
            results.append(run_load(spec))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield results
    finally:
        stop.set()
        thread.join()


def counters(server: Started) -> dict[str, float]:
    """Sums over all labels, when nothing waits any more."""
    values = dict.fromkeys(("queries_submitted", "queries_ended", "plans_failed"), 0.0)
    with urllib.request.urlopen(f"{server.management_url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            for name in values:
                if line.startswith(f"stretto_{name}_total"):
                    values[name] += float(line.rsplit(" ", 1)[1])
    return values


# -- unequal workers -------------------------------------------------------------------------------------------------


def unequal_fleets(bench: Benchmark) -> None:
    for name, fleet in UNEQUAL.items():
        row = fleet_row(name, fleet, bench.seed)
        bench.row(part="fleet", **row)
        bench.claim(
            f"{name}, simulated as served",
            paper="",
            target="works, beside the fluid bound: every query one outcome, ≥ 99% on time",
            ours=f"{row['correct_on_time']:.4f} of a bound of {row['bound']:.4f}, {row['on_time']:.2%} on time",
            met=row["conserved"] and row["on_time"] >= ON_TIME and row["correct_on_time"] <= row["bound"] + 0.005,
        )
    row = live_two_kinds(bench.seed)
    bench.row(part="fleet", **row)
    bench.claim(
        f"two kinds served live ({LIVE_KINDS})",
        paper="",
        target="works, beside the fluid bound: both kinds answer, ≥ 99% on time",
        ours=f"{row['correct_on_time']:.4f} of a bound of {row['bound']:.4f}, {row['on_time']:.2%} on time",
        met=row["on_time"] >= ON_TIME and row["least_busy_s"] > 0,
    )


def lines(bench: Benchmark) -> None:
    """Today, with the systems that came since; beside it when the planning path was made, from the project's history,
    without judged plans.
    """
    total_then = total_now = 0
    for folder in FOLDERS:
        then = sum(map(_length, _listed(folder)))
        now = sum(len(path.read_text().splitlines()) for path in (ROOT / "stretto" / folder).rglob("*.py"))
        bench.row(part=f"lines of {folder}", then=then, today=now)
        total_then += then
        total_now += now
    what = (
        f"lines of planners + live + planning today, with Jellyfish, edge RL, judged plans, clusters and GPUs "
        f"({total_then} when this path was made)"
    )
    bench.claim(
        what, paper=BEFORE_LINES, target=f"< {BEFORE_LINES}", ours=float(total_now), met=total_now < BEFORE_LINES
    )


def _listed(folder: str) -> list[str]:
    names = _git("ls-tree", "-r", "--name-only", MADE_BY, f"stretto/{folder}").splitlines()
    later = tuple(f"stretto/{name}" for name in OF_JUDGED_PLANS)
    return [name for name in names if name.endswith(".py") and not name.startswith(later)]


def _length(path: str) -> int:
    return len(_git("show", f"{MADE_BY}:{path}").splitlines())


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    again(tuple(sys.argv[2:])) if sys.argv[1:2] == ["--again"] else main("--but-live" in sys.argv[1:])
