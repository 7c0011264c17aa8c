"""Trains every policy that the edge RL benchmarks show, several at once, and says how long each took.

    python benchmarks/edge_rl_training.py --processes 16 --device cuda
    python benchmarks/edge_rl_training.py --processes 16 --keep

Policies go to OUT/policies and curves to OUT/curves. --keep trains nothing, but puts them where committed ones lie:
examples/edge, benchmarks/results/edge_rl and, the one trained on random settings, stretto/data. Of several ways to
train one (NAME~WAY) and the committed one it takes the one with most goodput, on the validation's seeds, among those
within the violations asked. Results are written where all policies were trained in full. Needs the extra rl.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

import edge_rl_ground as ground
import numpy as np
from harness import Benchmark

from stretto.planners.edge_rl.file import load_policies, save_policies
from stretto.planners.edge_rl.policy import Description, Policy
from stretto.planners.edge_rl.reward import Weights
from stretto.sim.switching import Switching
from stretto.training import SYSTEMS_AT_ONCE
from stretto.training.evaluate import Merit, evaluate, merit, violations_error
from stretto.training.settings import after_failures, random_systems
from stretto.training.teacher import TAUGHT, Rule, taught, teacher
from stretto.training.world import System, World

LATENCIES_MS = tuple(range(150, 451, 25))  # figure 3
FIGURE_2 = ("partial", "full")
QUICK_S, GENERAL_S = 0.25, 0.02
RANDOM_SETTINGS, RANDOM_SEED = 1024, 11
GENERAL = "general"
ROOT = Path(__file__).parent.parent
GENERAL_FILE = ROOT / "stretto" / "data" / "edge_rl.safetensors"
PARTIAL, AFTER_FAILURE, ANY_SETTING = 300, 60, 300  # iterations
AFTER_TEACHING, AFTER_BEST = 50, 10  # iterations; little is left to learn of a rule that is near the bound
VALIDATION_SLOTS = 200_000  # the standard error of violations is then 0.06 points where they are 1.4%
# Violations that a policy must stay below to be kept, in place of what a P98 allows.
MOST = {"partial": 0.0145, "full": 0.004, "full_strict": 0.004, "batching_full": 0.005}
UNEQUAL = ground.unequal(0.22, 0.75)  # the rule that policies told the phase are taught
AIM_S = 30 * 60.0
# Goodput and violations that must be reached, on the validation's seeds.
FIGURES = {"partial~taught": (0.7924, 0.0145), "partial_quick": (0.7924, 0.0145), "full_quick": (0.8014, 0.0040)}


@dataclass(frozen=True)
class Job:
    """One policy; `failures`: and those for what is left when an instance fails."""

    name: str
    full: bool = False
    slot_s: float = 1.0
    load: Switching = ground.MAIN
    slo_ms: float = ground.SLO_MS
    batching: bool = False
    failures: bool = False
    random: bool = False
    violations: float | None = None
    discount: float = 0.9  # weights of a slot are felt for two slots at most
    trace: float = 0.9
    clip: float = 0.3
    sigma: tuple[float, float] = (0.25, 0.08)  # used without noise, a policy should be judged with little
    weight: float = 1.0  # of violations in the reward
    rule: Rule | None = None  # that it learns to follow before it learns by itself
    iterations: int = 240  # more where the phase is not seen: it has to be told from the queues


def jobs() -> list[Job]:
    """The longest first, so that none is left alone at the end."""
    listed = [
        *general_jobs(),
        Job("partial~alone", failures=True, iterations=PARTIAL),
        # What stretto train does unless it is told otherwise.
        Job(
            "partial~published",
            failures=True,
            iterations=PARTIAL,
            discount=0.99,
            trace=0.95,
            clip=0.2,
            sigma=(0.698, 0.698),
        ),
        Job("partial~taught", failures=True, rule=ground.by_hand(), iterations=TAUGHT + AFTER_TEACHING),
        Job("full~alone", full=True, sigma=(0.25, 0.05), iterations=PARTIAL),
        Job("full~taught", True, rule=UNEQUAL, iterations=TAUGHT + AFTER_BEST),
        Job("partial_quick", slot_s=QUICK_S),
        Job("full_quick", full=True, slot_s=QUICK_S),
        Job("full_strict", full=True, violations=0.004),
        Job("batching_partial", batching=True, iterations=PARTIAL),
        Job("batching_full", full=True, batching=True, iterations=PARTIAL),
        Job("batching_full~tail", full=True, batching=True, violations=0.0045, iterations=PARTIAL),
        Job("periodic_partial", load=ground.PERIODIC, iterations=PARTIAL),
        Job("periodic_full", full=True, load=ground.PERIODIC),
        Job("periodic_partial_quick", load=ground.PERIODIC, slot_s=QUICK_S),
        Job("periodic_full_quick", full=True, load=ground.PERIODIC, slot_s=QUICK_S),
    ]
    for slo_ms in LATENCIES_MS:
        if slo_ms != ground.SLO_MS:
            for full in (False, True):
                name = f"latency_{slo_ms}_{'full' if full else 'partial'}"
                listed.append(Job(name, full, slo_ms=float(slo_ms)))
    return listed


def general_jobs() -> list[Job]:
    """One policy for any setting. A violation counts as a wrong answer and no more: with weights of 1 a policy keeps
    violations at a hundredth of what a P98 allows, and gives up right answers for that.
    """
    plain = Job(GENERAL, slot_s=GENERAL_S, random=True, discount=0.97, weight=0.0, iterations=ANY_SETTING)
    return [plain, replace(plain, name=f"{GENERAL}~near", discount=0.9)]


def system_of(job: Job) -> System:
    """Where instances batch, five queries take three times as long as one; the paper does not print it."""
    deployment = ground.hybrid(job.slo_ms)
    return System(ground.batching(deployment) if job.batching else deployment, job.load)


def train(job: Job, out: str, device: str, systems: int) -> tuple[str, float, list[dict[str, float]], int]:
    """In a process of its own. Its name, the seconds that it took, its curve, and where on it the policy was kept."""
    from stretto.training.ppo import Recipe
    from stretto.training.run import CURVE, Options, Training

    began = time.perf_counter()
    description = Description("shared" if job.random else "joint", job.slot_s, (), 0.0, job.full, job.batching)
    weights = Weights(job.weight, job.weight)
    recipe = Recipe(
        iterations=job.iterations,
        violations=job.violations,
        sigma=job.sigma,
        clip=job.clip,
        discount=job.discount,
        trace=job.trace,
        weights=weights,
    )
    plain = recipe
    if job.rule:
        recipe = taught(recipe)
    slots = VALIDATION_SLOTS if job.random else round(VALIDATION_SLOTS / job.slot_s)
    most = MOST.get(base_name(job.name))
    options = Options(recipe, systems, device=device, validate_every=20, validation_slots=slots, most_violations=most)
    if job.rule:
        options = replace(options, validate_every=10)
    crews: list[Sequence[System]] = [random_systems(RANDOM_SETTINGS, RANDOM_SEED) if job.random else (system_of(job),)]
    if job.failures:
        crews += [(left,) for left in after_failures(system_of(job))]
    policies: list[Policy] = []
    curves = []
    for number, crew in enumerate(crews):
        folder = Path(out) / "runs" / f"{job.name}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        rule = None if job.rule is None else teacher(job.rule, system_of(job), job.slot_s)
        if number:  # the rule is for all instances
            iterations = min(AFTER_FAILURE, job.iterations)
            recipe = replace(plain, iterations=iterations, violations=None, discount=0.9, sigma=Job.sigma)
            options, rule = replace(options, recipe=recipe, most_violations=None), None
        training = Training(crew, description, options, folder, rule)
        policies.append(training.run())
        curves.append(training.curve)
        if number == 0:
            shutil.copy(folder / CURVE, Path(out) / "curves" / f"{job.name}.json")
    save_policies(trained_file(Path(out), job), policies)
    kept_after = policies[0].description.trained["slots"]
    place = next(place for place, row in enumerate(curves[0]) if row["slots"] == kept_after)
    return job.name, time.perf_counter() - began, curves[0], place


def main(arguments: Sequence[str]) -> None:
    """All of them, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=str(ROOT / "build" / "edge_rl"), help="a folder; build/edge_rl")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--systems", type=int, default=SYSTEMS_AT_ONCE)
    parser.add_argument("--iterations", type=int, default=0, help="in place of each policy's own")
    parser.add_argument("--only", default="", help="names with commas between them; * stands for anything")
    parser.add_argument("--keep", action="store_true", help="put what was trained where committed policies lie")
    given = parser.parse_args(arguments)
    wanted = [job for job in jobs() if any(fnmatch(job.name, part) for part in (given.only or "*").split(","))]
    if given.keep:
        keep(Path(given.out), wanted, given.processes)
        return
    for folder in ("policies", "curves"):
        (Path(given.out) / folder).mkdir(parents=True, exist_ok=True)
    if given.iterations:
        wanted = [replace(job, iterations=given.iterations) for job in wanted]
    warm()  # so that the processes find compiled code
    bench = Benchmark("edge_rl_training")
    began = time.perf_counter()
    reached: dict[str, float] = {}
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(train, job, given.out, given.device, given.systems) for job in wanted]
        for done in as_completed(waiting):
            name, seconds, curve, place = done.result()
            kept = curve[place]
            if name in FIGURES:
                reached[name] = seconds_until(curve, *FIGURES[name])
            figures = {key: kept[f"overall_{key}"] for key in ("goodput", "violations", "heavy")}
            bench.row(policy=name, seconds=seconds, slots=kept["slots"], **figures, device=given.device)
            print(f"{name}: {seconds:.0f} s, {figures}", file=sys.stderr, flush=True)
    bench.row(policy="all", seconds=time.perf_counter() - began, processes=given.processes, device=given.device)
    for name, (goodput, violations) in FIGURES.items():
        if name in reached:
            what = f"{name}: seconds until {goodput:.2%} goodput and {violations:.2%} violations ({given.device})"
            seconds = reached[name]
            ours = seconds if math.isfinite(seconds) else "never"
            bench.claim(what, paper="250 million slots", target=f"≤ {AIM_S:.0f}", ours=ours, met=seconds <= AIM_S)
    if given.only or given.iterations:
        bench.show()
    else:
        bench.finish()


def base_name(name: str) -> str:
    """Without the way in which it was trained."""
    return name.partition("~")[0]


def keep(out: Path, wanted: Sequence[Job], processes: int) -> None:
    """Of each policy the best way to train it, with its curve (those of figure 3 have none); of figure 2 the curves of
    all ways.
    """
    ways: dict[str, list[Job]] = {}
    for job in wanted:
        if trained_file(out, job).exists():
            ways.setdefault(base_name(job.name), []).append(job)
    warm()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        merits = {
            name: {
                path: pool.submit(merit_of, path, trained[0])
                for path in (committed_file(name), *(trained_file(out, job) for job in trained))
                if path.exists()
            }
            for name, trained in ways.items()
        }
        for name, of_paths in merits.items():
            by_path = {path: future.result() for path, future in of_paths.items()}
            best = max(by_path, key=by_path.__getitem__)
            print(
                f"{name}: {best} of", {f"{path.parent.name}/{path.name}": by_path[path] for path in by_path}, flush=True
            )
            put(out, name, best, ways[name])


def put(out: Path, name: str, best: Path, ways: Sequence[Job]) -> None:
    """The best policy where the committed one lies, and its curve where figures are drawn from."""
    committed = committed_file(name)
    if best != committed:
        shutil.copy(best, committed)
        if name not in FIGURE_2 and not name.startswith("latency_"):
            shutil.copy(out / "curves" / f"{best.stem}.json", ground.FOR_FIGURES / f"{name}.json")
    if name in FIGURE_2:
        for job in ways:
            shutil.copy(out / "curves" / f"{job.name}.json", ground.FOR_FIGURES)


def trained_file(out: Path, job: Job) -> Path:
    """Where a training leaves its policies."""
    return out / "policies" / f"{job.name}.safetensors"


def committed_file(name: str) -> Path:
    """Where the policy of this name lies that benchmarks and users load."""
    return GENERAL_FILE if name == GENERAL else ground.policy_file(name)


def merit_of(path: Path, job: Job) -> Merit:
    """On the validation's seeds."""
    from stretto.training.run import TAIL, VALIDATION_SEED

    (policy, *_) = load_policies(path)
    systems = random_systems(RANDOM_SETTINGS, RANDOM_SEED) if job.random else [system_of(job)]
    world = World(systems, policy.description, max(1, ground.SYSTEMS // len(systems)), VALIDATION_SEED)
    slots = VALIDATION_SLOTS if job.random else round(VALIDATION_SLOTS / job.slot_s)
    evaluation, counts = evaluate(world, policy.decide, slots, VALIDATION_SEED)
    if not job.random:
        evaluation = ground.in_long_run(evaluation, job.load)
    return merit(evaluation.overall, violations_error(counts), MOST.get(base_name(job.name), TAIL))


def seconds_until(curve: Sequence[dict[str, float]], goodput: float, violations: float) -> float:
    """When a training first had both figures; infinity where it never had."""
    good = (row for row in curve if row["overall_goodput"] >= goodput and row["overall_violations"] <= violations)
    return next((row["seconds"] for row in good), math.inf)


def warm() -> None:
    """Compiles what the processes will run."""
    for job in (Job("plain"), Job("batching", batching=True)):
        system = system_of(job)
        description = system.description(Description("joint", 1.0, batching=job.batching))
        world = World([system], description, 2)
        world.step(np.full((2, 4), 0.25), np.zeros((2, 2), np.int64) if job.batching else None)


if __name__ == "__main__":
    main(sys.argv[1:])
