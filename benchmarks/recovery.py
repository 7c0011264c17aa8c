"""Recovery: fresh starts on a task that gains by batching, queues that are long and old, and workers that all stall.

Three parts. (1) The text task of RAMSIS, 100 ms, 20 workers, 39 to 74% of what they can answer, exact times: each start
is a new planning session and counts from its first query. The default's judge sees a stretch of another seed. RAMSIS
stands beside it twice: as served, and with the load told from the start. (2) Every listed planner that drops late
queries begins with random queues; what comes later than three SLOs after that is held against the same arrivals without
the queue. (3) All of four workers with a GPU's profile stall for 0.3 s. Needs shared/data/ramsis_text.csv.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import Any

import numpy as np
from harness import Benchmark, zoo
from measured import measured_setting
from numpy.typing import NDArray
from ramsis_ground import IMAGE, TEXT

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.published import published_table
from stretto.core.worker import workers
from stretto.planners.ports import MadePolicy, MakePolicy, policy_name
from stretto.planners.registry import ENTRIES
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.arrivals import ARRIVAL, Load, Source
from stretto.sim.ports import simulator_ports
from stretto.sim.processes import Poisson
from stretto.sim.simulator import Fault, FaultKind, simulate
from stretto.twin.setting import Setting
from stretto.twin.spot import SpotJudge

STARTS = 50
SHARES = (0.39, 0.74)  # of what the workers can answer
START_S = 10.0
CHOSEN_ON, MEASURED_S = 901, 5.0  # what the judge sees
WITHIN = 0.005  # of the queries, below RAMSIS
RUNS = {"judged": True, "ramsis": True, "ramsis, told the load": False}  # and whether it is as served

QUEUES = 1_000  # for each planner
LOADS = (0.4, 0.55, 0.7, 0.85)
RECOVERED_SLOS, COUNTED_SLOS = 3, 13
RECOVERED = 0.03  # of the queries that came later: luck tells two starts apart by so much
MEAN_RECOVERED = 0.002

STALL_S, STALL_LOAD = 0.3, 0.7

# Published without a rule that drops late queries, so that an old queue is worked off, each query late.
KEEP_EVERYTHING = {
    *("clipper", "fixed_delay", "model_switching", "jellyfish_plus", "ramsis"),
    *("lightweight", "heavyweight", "single_queue", "stationary", "infaas", "edge_rl", "leave_it"),
    *("sneakpeek", "grouped", "lo_priority", "lo_edf", "max_acc_edf"),
}
NEED_CLIENTS = {"jellyfish", "jellyfish_pool"}  # with networks
# Published with a choice that does not look at how many wait: a fresh start falls into the same state by itself. Rows
# show them, and nothing is claimed.
SLACK_ALONE = {"slackfit", "symphony_eager", "clockwork", "clockwork_filling"}
# Each application has as few workers as carry it, so luck tells two fresh starts apart by ten points. The mean counts.
MEAN_ALONE = {"placed"}
LISTED = [entry for entry in ENTRIES if entry.name not in KEEP_EVERYTHING | NEED_CLIENTS]


@dataclass(frozen=True, eq=False)
class Given:
    """These arrivals, and no others."""

    arrivals: NDArray[np.void]
    rates: tuple[float, ...]

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.rates

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        yield self.arrivals


@dataclass(eq=False)
class RememberedPolicies:
    """A policy port that makes what is asked for at once, and only once: a policy does not depend on who asks."""

    made: dict[object, Any] = field(default_factory=dict)
    waiting: list[MadePolicy] = field(default_factory=list)

    def ask(self, task: Any, options: Any, load: float, make: MakePolicy) -> None:
        key = (task.key, policy_name(task, options, load))
        if key not in self.made:
            try:
                self.made[key] = make(task, options, load)
            except StrettoError:
                self.made[key] = None
        self.waiting.append(MadePolicy(task, load, self.made[key], options))

    def collect(self) -> Sequence[MadePolicy]:
        made, self.waiting = self.waiting, []
        return made


class RoundedJudge(SpotJudge):
    """Loads within a tenth of one another have one verdict: a planner is judged for four loads, not for every queue."""

    @staticmethod
    def _case(deployment: Deployment, setting: Setting, rates: tuple[float, ...]) -> Hashable:
        return tuple(round(math.log(max(rate, 1.0), 1.1)) for rate in rates)


def capacity(deployment: Deployment) -> float:
    """Queries/s of all workers in the best batch that the SLO allows, applications sharing workers evenly."""
    paces = []
    for application in deployment.applications:
        rates = [
            batch * NS_PER_S / profile.latency_ns(batch)
            for variant in application.variants
            for profile in variant.profiles
            for batch in range(1, profile.max_batch + 1)
            if profile.latency_ns(batch) <= application.slo_ns
        ]
        paces.append(max(rates))
    return len(deployment.workers) * len(paces) / sum(1 / pace for pace in paces)


def staggered_capacity(deployment: Deployment) -> float:
    """The same with batches that a query may wait for: (1 + 1/N)·l(b) ≤ SLO, of the workers' even share."""
    count = max(len(deployment.workers) / len(deployment.applications), 1.0)
    shorter = tuple(
        replace(application, slo_ns=int(application.slo_ns / (1 + 1 / count)))
        for application in deployment.applications
    )
    return capacity(replace(deployment, applications=shorter))


# Fresh starts.


def started(name: str, deployment: Deployment, load: float, seed: int) -> float:
    """The share right and on time of a new session's first ten seconds."""
    setting = measured_setting(deployment, Load(Poisson(), load), None, seconds=MEASURED_S, seed=CHOSEN_ON)
    ports = replace(simulator_ports(), judge=SpotJudge(lambda _: setting))
    session = served_session(name.split(",")[0], ports=ports)
    return simulate(
        deployment,
        session,
        Load(Poisson(), load),
        seconds=START_S,
        seed=seed,
        replan_s=session.rhythm.period_for(deployment) or None,
        expected_rates=(0.0,) if RUNS[name] else None,
    ).summary.correct_on_time


def start_row(number: int) -> dict[str, Any]:
    """One load, one seed, all systems."""
    deployment = TEXT.deployment(20, 100.0)
    share = float(np.linspace(*SHARES, STARTS)[number])
    load = share * capacity(deployment)
    correct = {name: started(name, deployment, load, 1000 + number) for name in RUNS}
    return {"part": "fresh start", "share": share, "load": load, **correct}


# Old queues.


def grounds() -> dict[str, Deployment]:
    """One variant or several, few workers or many, one application or several."""
    models = [model for model in published_table("symphony_1080ti") if model.slo_ms <= 60][:4]
    ladder = tuple(
        Variant(name, accuracy, (LatencyProfile.linear(alpha, beta, 64),))
        for name, accuracy, alpha, beta in (("quick", 0.7, 0.3, 2.0), ("sound", 0.8, 1.0, 4.0), ("best", 0.9, 2.5, 6.0))
    )
    return {
        "text, 20 workers": TEXT.deployment(20, 100.0),
        "text, 4 workers": TEXT.deployment(4, 200.0),
        "image, 8 workers": IMAGE.deployment(8, 150.0),
        "ladder, 1 worker": Deployment((Application("ladder", 60 * NS_PER_MS, ladder),), workers(1)),
        "4 models, 8 workers": zoo(models, 8),
        "1 model, 4 workers": zoo(models[:1], 4),
    }


def arrivals(deployment: Deployment, load: float, seed: int) -> tuple[Given, Given, int]:
    """The same queries without and with a random queue before them, and the moment from which on they count."""
    random = np.random.default_rng(seed)
    slo_ns = max(application.slo_ns for application in deployment.applications)
    slos = np.array([application.slo_ns for application in deployment.applications])
    end_ns = (RECOVERED_SLOS + COUNTED_SLOS) * slo_ns
    count = random.poisson(load * end_ns / NS_PER_S)
    times = np.sort(random.integers(1, end_ns, count))
    applications = random.integers(len(slos), size=count)
    rates = (load / len(slos),) * len(slos)

    queued = int(random.uniform(0.2, 5.0) * load * slo_ns / NS_PER_S)
    of_queue = random.integers(len(slos), size=queued)
    oldest, newest = np.sort(random.uniform(size=2))  # parts of the SLO that are over
    left = ((1 - random.uniform(oldest, newest, queued)) * slos[of_queue]).astype(np.int64)

    def given(time: NDArray[Any], deadline: NDArray[Any], application: NDArray[Any]) -> Given:
        rows = np.zeros(len(time), ARRIVAL)
        rows["time_ns"], rows["deadline_ns"], rows["application"] = time, deadline, application
        rows["client"] = rows["query_class"] = -1
        return Given(rows, rates)

    alone = times, times + slos[applications], applications
    queue = np.zeros(queued, np.int64), left, of_queue
    both = tuple(np.concatenate(pair) for pair in zip(queue, alone, strict=True))
    return given(*alone), given(*both), RECOVERED_SLOS * slo_ns


def on_time_from(deployment: Deployment, session: Session, source: Source, from_ns: int, end_s: float) -> float:
    """The share on time of the queries that come from then on."""
    ended = simulate(
        deployment,
        session,
        source,
        seconds=end_s,
        replan_s=session.rhythm.period_for(deployment) or None,
        expected_rates=(0.0,) * len(deployment.applications),
        record=True,
    ).queries
    assert ended is not None
    counted = ended[ended["arrival_ns"] > from_ns]
    return float((counted["outcome"] == Outcome.ON_TIME).mean())


def queue_row(name: str, ground: str, part: int, queues: int) -> dict[str, Any]:
    """One planner on one ground at one of the loads, from so many random queues."""
    deployment = grounds()[ground]
    slo_s = max(application.slo_ns for application in deployment.applications) / NS_PER_S
    load = LOADS[part] * staggered_capacity(deployment)
    law = Load(Poisson(), load)
    judge = RoundedJudge(lambda deployment: measured_setting(deployment, law, None, seconds=MEASURED_S, seed=CHOSEN_ON))
    about = {"part": "old queues", "planner": name, "ground": ground, "load": load}
    behind, policies = [], RememberedPolicies()
    for number in range(part, queues * len(LOADS), len(LOADS)):
        fresh, old, from_ns = arrivals(deployment, load, 7_000 + number)

        def share(source: Source, from_ns: int = from_ns) -> float:
            ports = replace(simulator_ports(), judge=judge, policies=policies)
            session = served_session(name, ports=ports)
            return on_time_from(deployment, session, source, from_ns, (RECOVERED_SLOS + COUNTED_SLOS) * slo_s)

        try:
            behind.append(share(fresh) - share(old))
        except StrettoError as error:  # it makes no plan here, which is no state to recover from
            return {**about, "queues": 0, "why": str(error)[:60]}
    return {
        **about,
        "queues": queues,
        "behind": fmean(behind),
        "most": max(behind),
        "not_recovered": sum(each > RECOVERED for each in behind),
    }


# A stall of all workers.


def stall_row(name: str) -> dict[str, Any]:
    """Four workers with a GPU's profile, where a batch of 64 takes hardly longer than one of 1."""
    ladder = tuple(
        Variant(model, accuracy, (LatencyProfile.linear(alpha, beta, 256),))
        for model, accuracy, alpha, beta in (
            *(("small", 0.70, 0.011, 0.9), ("medium", 0.76, 0.028, 1.6)),
            ("large", 0.80, 0.060, 2.9),
        )
    )
    deployment = Deployment((Application("images", 50 * NS_PER_MS, ladder),), workers(4))
    load = STALL_LOAD * staggered_capacity(deployment)
    moments = ((1.0, FaultKind.LEFT), (1.0 + STALL_S, FaultKind.JOINED))
    stall = [Fault(moment, worker, kind) for moment, kind in moments for worker in range(4)]
    from_ns = round((1.0 + STALL_S) * NS_PER_S) + RECOVERED_SLOS * 50 * NS_PER_MS

    def share(faults: Sequence[Fault]) -> float:
        setting = measured_setting(deployment, Load(Poisson(), load), None, seconds=1.0, seed=CHOSEN_ON)
        session = served_session(name, ports=replace(simulator_ports(), judge=SpotJudge(lambda _: setting)))
        ended = simulate(
            deployment,
            session,
            Load(Poisson(), load),
            seconds=2.0,
            seed=17,
            replan_s=session.rhythm.period_for(deployment) or None,
            expected_rates=(0.0,),
            record=True,
            faults=faults,
        ).queries
        assert ended is not None
        counted = ended[ended["arrival_ns"] > from_ns]
        return float((counted["outcome"] == Outcome.ON_TIME).mean())

    calm, stalled = share(()), share(stall)
    return {"part": "stall of all workers", "planner": name, "load": load, "on_time": stalled, "behind": calm - stalled}


STALLED = ("judged", "joint", "shared_queue", "priced", "slackfit", "symphony", "symphony_eager")


def found(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The grounds of these rows."""
    return {row["ground"] for row in rows}


def claims(bench: Benchmark, rows: Sequence[dict[str, Any]]) -> None:
    """What the rows show."""
    starts = [row for row in rows if row["part"] == "fresh start"]
    below = [max(row["ramsis"], row["ramsis, told the load"]) - row["judged"] for row in starts]
    bench.claim(
        f"text task, 100 ms, 20 workers, {len(starts)} fresh starts: points below RAMSIS, most",
        paper="",
        target=f"≤ {100 * WITHIN:g}",
        ours=100 * max(below),
        met=max(below) <= WITHIN,
    )
    queues = [row for row in rows if row["part"] == "old queues"]
    for name in dict.fromkeys(row["planner"] for row in queues if row["planner"] not in SLACK_ALONE):
        of_planner = [row for row in queues if row["planner"] == name and row["queues"]]
        count, lost = (sum(row[key] for row in of_planner) for key in ("queues", "not_recovered"))
        means = [fmean(row["behind"] for row in of_planner if row["ground"] == ground) for ground in found(of_planner)]
        mean = max(means, default=1.0)
        is_mean_alone = name in MEAN_ALONE
        bench.claim(
            f"{name}: {count} random queues, still behind after {RECOVERED_SLOS} SLOs; worst mean of a ground",
            paper="",
            target=f"{'any' if is_mean_alone else 0}, ≤ {MEAN_RECOVERED:.1%}",
            ours=f"{lost}, {mean:.2%}",
            met=(is_mean_alone or lost == 0) and mean <= MEAN_RECOVERED,
        )
    stalls = [row for row in rows if row["part"] == "stall of all workers"]
    worst = max(stalls, key=lambda row: row["behind"])
    bench.claim(
        f"a stall of {STALL_S:g} s, 4 workers, {RECOVERED_SLOS} SLOs later: behind a calm run, most of {len(stalls)}",
        paper="",
        target=f"≤ {RECOVERED:.0%}",
        ours=f"{worst['behind']:.2%} ({worst['planner']})",
        met=worst["behind"] <= RECOVERED,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; all cores")
    parser.add_argument("--queues", type=int, default=QUEUES, help="for each planner; fewer: nothing is written")
    parser.add_argument("--starts", type=int, default=STARTS, help="fewer: nothing is written")
    parser.add_argument("--only", default="", help="planners of these names alone, with commas; nothing is written")
    options = parser.parse_args()
    bench = Benchmark("recovery", seed=1000)
    names = [entry.name for entry in LISTED if not options.only or entry.name in options.only.split(",")]
    each = -(-options.queues // (len(grounds()) * len(LOADS)))
    jobs: list[tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = []
    jobs += [(stall_row, (name,)) for name in STALLED]  # the longest first
    jobs += [(queue_row, (*part, each)) for part in product(names, grounds(), range(len(LOADS)))]
    jobs += [(start_row, (number,)) for number in range(0, STARTS, -(-STARTS // max(options.starts, 1)))]
    rows = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = {pool.submit(what, *arguments): place for place, (what, arguments) in enumerate(jobs)}
        for future in bench.steps(as_completed(futures), len(futures), "rows"):
            rows.append((futures[future], future.result()))
    for _, row in sorted(rows, key=lambda pair: pair[0]):
        bench.row(**row)
    claims(bench, bench.rows)
    if (options.queues, options.starts, options.only) == (QUEUES, STARTS, ""):
        bench.finish()
    else:
        bench.show()


if __name__ == "__main__":
    main()
