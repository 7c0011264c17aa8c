"""The setting of SneakPeek's evaluation (section 6.1) on the zoo, shared by the benchmarks sneakpeek_*.

*Applications*: fashion (80% of its stream is one class, the rest evenly spread, like heart monitoring), mnist (uniform,
like voice commands), activity (95% one class, 5% a rare one, like falls). *Windows* of 100 ms; in each, 4 queries of
each application at uniformly random moments; deadlines are normal, 150 ms on average, 30 ms standard deviation, at
least 10 ms. *One worker* that holds one variant at a time. *Latency* is what was measured on an H200 GPU (the mean)
times SLOWDOWN; *swap time* is the time to load a variant, as measured on a CPU. SLOWDOWN is chosen for the paper's
regime: in groups, one worker can run the fastest variants for a whole window within a window, but one by one not for a
third of it, nor the most accurate ones in groups for a quarter (`demand` computes these). After each window there is a
pause, so that every window begins with an idle worker, as where schedules are judged window by window; `pause_ms=0` is
the other case, in which what is left over delays the next window.

*Evidence* is real: each query is an input of the zoo's labelled samples with the class that its stream drew; θ comes
from the application's shipped neighbours. An answer of a variant is worth its recall for the true class, an answer from
evidence 1 or 0 as it is right or wrong, both times the share that its lateness leaves. Runs go through the simulator;
what its planner may not know (the true class) is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Penalty, Variant
from stretto.core.deployment import Deployment
from stretto.core.evidence import Said
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.view import Planner
from stretto.core.worker import Worker
from stretto.evidence.load import open_evidence
from stretto.planners.sneakpeek.planner import SneakPeek, grouped, lo_edf, lo_priority, max_acc_edf
from stretto.planners.sneakpeek.timeline import kept_share
from stretto.repository.read import read_repository
from stretto.sim.arrivals import ARRIVAL
from stretto.sim.simulator import simulate

NAMES = ("fashion", "mnist", "activity")
GPU, CPU = "gpu-nvidia-h200", "cpu-aarch64-neoverse-n1-2c"
KIND = "slowed"
SLOWDOWN = 500.0
WINDOW_MS = 100.0
DEADLINE_MS, DEADLINE_SD_MS, LEAST_DEADLINE_MS = 150.0, 30.0, 10.0
PER_APPLICATION = 4
MEMORY = 1 << 30
WINDOWS = 400
PAUSE_MS = 1900.0
SYSTEMS: dict[str, Callable[..., SneakPeek]] = {
    "MaxAcc-EDF": max_acc_edf,
    "LO-EDF": lo_edf,
    "LO-Priority": lo_priority,
    "Grouped": grouped,
    "SneakPeek": SneakPeek,
}
# The schedulers as they are printed: groups are not bettered after the greedy choice, lateness costs what the penalty
# says and no more, and a class is told where it has more than half of θ.
PUBLISHED: dict[str, Any] = {"trials": 0, "caution": 0.0, "order": "first_come", "certainty": 0.5}
AS_PUBLISHED: dict[str, Callable[..., SneakPeek]] = {
    "Grouped as published": lambda: grouped(**PUBLISHED),
    "SneakPeek as published": lambda: SneakPeek(**PUBLISHED),
}


def class_shares(name: str, classes: int) -> NDArray[np.float64]:
    """The stream of an application."""
    if name == "mnist":
        return np.full(classes, 1 / classes)
    shares = np.zeros(classes)
    if name == "activity":
        shares[0], shares[1] = 0.95, 0.05
    else:
        shares[:], shares[0] = 0.2 / (classes - 1), 0.8
    return shares


@cache
def zoo_application(
    name: str, slowdown: float = SLOWDOWN, penalty: Penalty = Penalty.SIGMOID, kind: str = GPU
) -> Application:
    """With the latencies of a kind slowed down and CPU load times; every variant fills the worker's memory."""
    repository = read_repository(f"zoo:{name}")
    measured, _ = repository.deployment(1, kind=kind)
    cpu, _ = repository.deployment(1, kind=CPU)
    loads = {variant.name: variant.load_ns for variant in cpu.variants}
    variants = []
    for variant in measured.variants:
        mean_ns = np.rint(variant.profiles[0].table_ns[Quantile.MEAN] * slowdown).astype(np.int64)
        profile = LatencyProfile(np.tile(mean_ns, (len(Quantile), 1)), KIND)
        variants.append(
            replace(
                variant,
                profiles=(profile,),
                memory_bytes=MEMORY,
                dynamic_memory_bytes=0,
                load_ns=loads[variant.name],
            )
        )
    files = measured.applications[0]
    return Application(
        name, int(DEADLINE_MS * NS_PER_MS), tuple(variants), penalty, files.classes, files.evidence_accuracy
    )


def deployment(
    workers: int = 1,
    *,
    slowdown: float = SLOWDOWN,
    penalty: Penalty = Penalty.SIGMOID,
    kind: str = GPU,
    copies: int = 1,
    change: Callable[[Application], Application] = lambda application: application,
) -> Deployment:
    """The three applications (`copies` times over) on workers that hold one variant each."""
    applications = [
        replace(change(zoo_application(name, slowdown, penalty, kind)), name=name if copy == 0 else f"{name}-{copy}")
        for copy in range(copies)
        for name in NAMES
    ]
    return Deployment(
        tuple(applications), tuple(Worker(f"worker-{number}", KIND, MEMORY, ()) for number in range(workers))
    )


@cache
def pool(name: str) -> Said:
    """θ and label of every labelled sample of an application, and how often evidence is right of others."""
    application = read_repository(f"zoo:{name}").application(name)
    sample, evidence = application.sample(), open_evidence(application)
    return Said(evidence.posterior(sample.inputs), sample.labels.astype(np.int64), evidence.recall)


@dataclass(frozen=True, eq=False)
class Traffic:
    """Arrivals with what only the judge may know: true classes. `theta` and `guess` are what evidence says."""

    arrivals: NDArray[np.void]
    true_class: NDArray[np.int64]
    theta: NDArray[np.float64]
    guess: NDArray[np.int64]
    seconds: float
    rates: tuple[float, ...]

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        yield self.arrivals

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.rates


ThetaOf = Callable[[str, NDArray[np.int64], np.random.Generator], NDArray[np.float64]]


def from_samples(name: str, labels: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64]:
    """Evidence of a random labelled sample of each class."""
    theta, known = pool(name).theta, pool(name).labels
    places = [np.flatnonzero(known == label) for label in range(theta.shape[1])]
    return theta[[random.choice(places[label]) for label in labels]]


def traffic(
    served: Deployment,
    *,
    windows: int = WINDOWS,
    pause_ms: float = PAUSE_MS,
    requests: int = PER_APPLICATION * len(NAMES),
    deadline_ms: float = DEADLINE_MS,
    deadline_sd_ms: float = DEADLINE_SD_MS,
    theta_of: ThetaOf = from_samples,
    tells_class: bool = False,
    seed: int = 1,
) -> Traffic:
    """`requests` per window, dealt evenly to applications. `tells_class`: queries carry the class that is guessed."""
    random = np.random.default_rng(seed)
    count = windows * requests
    names = [application.name.split("-")[0] for application in served.applications]
    times = np.repeat(np.arange(windows), requests) * (WINDOW_MS + pause_ms) + random.random(count) * WINDOW_MS
    owners = np.tile(np.arange(requests) % len(names), windows)
    lengths = np.maximum(LEAST_DEADLINE_MS, random.normal(deadline_ms, deadline_sd_ms, count))
    widest = max(application.classes for application in served.applications)
    true_class = np.zeros(count, np.int64)
    theta = np.full((count, widest), np.nan)
    for number, name in enumerate(names):
        mine = owners == number
        classes = served.applications[number].classes
        true_class[mine] = random.choice(classes, mine.sum(), p=class_shares(name, classes))
        theta[mine, :classes] = theta_of(name, true_class[mine], random)
    order = np.argsort(times, kind="stable")
    times, owners, lengths, true_class, theta = (a[order] for a in (times, owners, lengths, true_class, theta))
    guess = np.nanargmax(theta, axis=1)
    arrivals = np.zeros(count, dtype=ARRIVAL)
    arrivals["time_ns"] = np.rint(times * NS_PER_MS)
    arrivals["deadline_ns"] = arrivals["time_ns"] + np.rint(lengths * NS_PER_MS).astype(np.int64)
    arrivals["application"] = owners
    arrivals["client"] = -1
    arrivals["query_class"] = guess if tells_class else -1
    rates = np.bincount(owners, minlength=len(names)) / (windows * WINDOW_MS / 1000)
    seconds = windows * (WINDOW_MS + pause_ms) / 1000
    return Traffic(arrivals, true_class, theta, guess, seconds, tuple(rates.tolist()))


@dataclass(frozen=True)
class Score:
    """Means over all queries; `violations` is the share that ended late, `late_ms` by how much those did."""

    utility: float
    accuracy: float
    violations: float
    late_ms: float
    from_evidence: float
    answered: float
    by_query: NDArray[np.float64]


def judge(served: Deployment, queries: NDArray[np.void], asked: Traffic) -> Score:
    """What the answers were worth, by the true classes."""
    correct = np.zeros(len(queries))
    utility = np.zeros(len(queries))
    answered = np.isin(queries["outcome"], (Outcome.ON_TIME, Outcome.LATE))
    for place in np.flatnonzero(answered):
        query, truth = queries[place], asked.true_class[place]
        application = served.applications[query["application"]]
        variant = query["variant"]
        if variant >= 0:
            correct[place] = served.variants[variant].recall[truth]
        else:
            correct[place] = float(asked.guess[place] == truth)
        length_ns = query["deadline_ns"] - query["arrival_ns"]
        kept = kept_share(int(application.penalty), query["end_ns"], query["deadline_ns"], length_ns)
        utility[place] = correct[place] * kept
    late = answered & (queries["end_ns"] > queries["deadline_ns"])
    late_ns = (queries["end_ns"] - queries["deadline_ns"])[late]
    return Score(
        float(utility.mean()),
        float(correct[answered].mean()) if answered.any() else 0.0,
        float((late | ~answered).mean()),
        float(late_ns.mean() / NS_PER_MS) if late.any() else 0.0,
        float((answered & (queries["variant"] < 0)).mean()),
        float(answered.mean()),
        utility,
    )


def run(served: Deployment, planner: Planner, asked: Traffic) -> Score:
    """One run through the simulator, a plan each window."""
    result = simulate(
        served,
        planner,
        asked,
        seconds=asked.seconds,
        replan_s=WINDOW_MS / 1000,
        record=True,
        evidence=asked.theta,
    )
    assert result.queries is not None
    return judge(served, result.queries, asked)


def demand(served: Deployment, requests: int = PER_APPLICATION * len(NAMES)) -> dict[str, float]:
    """Worker time that a window's queries take, over the window: best and fastest variants, alone and grouped."""
    each = requests // len(served.applications)
    found = {"best alone": 0.0, "fastest alone": 0.0, "best grouped": 0.0, "fastest grouped": 0.0}
    for application in served.applications:
        best = max(application.variants, key=lambda variant: variant.accuracy)
        fastest = min(application.variants, key=lambda variant: variant.profiles[0].latency_ns(1) + variant.load_ns)
        for label, variant in (("best", best), ("fastest", fastest)):
            found[f"{label} alone"] += each * _time_ms(variant, 1)
            found[f"{label} grouped"] += _time_ms(variant, each)
    return {label: time_ms / WINDOW_MS / len(served.workers) for label, time_ms in found.items()}


def _time_ms(variant: Variant, batch: int) -> float:
    return (variant.load_ns + variant.profiles[0].latency_ns(batch)) / NS_PER_MS
