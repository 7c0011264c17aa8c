"""The judged default with network knowledge, on Jellyfish's settings: its accuracy and misses beside Jellyfish's own.

For each trace, SLO and rate a judge has seen eight clients like those that come (their rates, SLOs, delays and two
minutes of bandwidths from elsewhere in the trace), on seeds of its own; the runs are on seeds that it never saw.
Verdicts are remembered from one run to the next, as a server remembers them. 60 s and two seeds each. It takes half an
hour of CPU time: with `--keep FOLDER` what a judge's settings gave is written there as it comes, and taken from there
when the benchmark is run again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
from harness import Benchmark
from jellyfish_ground import deployment
from jellyfish_network import SECONDS, SEEDS, SHARED, Setting, can_be_mapped, clients_of, outcomes, run, settings

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.planners.ports import Ports
from stretto.planning.served import served_session
from stretto.sim.network.result import NetworkSummary
from stretto.sim.network.run import simulate_network
from stretto.sim.service import Empirical
from stretto.twin.clients import conditions_of
from stretto.twin.setting import Setting as Conditions
from stretto.twin.spot import SpotJudge
from stretto.twin.stretch import ArrivalStretch

JUDGE_SEED = 7919  # where in the trace the judge's clients begin
TESTED = SEEDS[:2]
HISTORY_S = 120.0
MOST_MISSED = 0.01
SAME = 0.0005  # of accuracy: a twentieth of a point is noise of two runs


@dataclass(frozen=True)
class Given:
    """Of one system, mean of the runs."""

    accuracy: float
    miss_rate: float


@dataclass(frozen=True)
class Trial:
    """What one setting gave."""

    judged: Given
    jellyfish: Given
    middle: Given
    low: Given
    served: tuple[str, ...]
    cpu_s: float


def judge_for(setting: Setting) -> SpotJudge:
    """Of clients like these, as many as there are in any setting."""
    known = tuple(conditions_of(client, HISTORY_S) for client in clients_of(setting, JUDGE_SEED))

    def conditions(served: Deployment) -> Conditions:
        rate = sum(client.rate for client in known)
        return Conditions({served.applications[0].name: ArrivalStretch(rate)}, delays=Delays(), clients=known)

    return SpotJudge(conditions)


def trials(those: tuple[Setting, ...]) -> list[Trial]:
    """Settings that differ in the number of their clients, the most first; each is told which verdicts it asked for."""
    judge, made = judge_for(those[0]), []
    served = deployment(those[0].workers, those[0].slo_ms)
    for setting in those:
        before = len(judge.verdicts)
        judged = []
        for seed in TESTED:
            session = served_session("judged", ports=Ports(judge=judge))
            clients = clients_of(setting, seed)
            period_s = session.rhythm.period_for(served)
            result = simulate_network(
                served, session, clients, seconds=SECONDS, seed=seed, service=Empirical(), replan_s=period_s
            )
            judged.append(result.summary)
        others = (given([run(setting, name, seed).summary for seed in TESTED]) for name in ("jellyfish", "B_M", "B_L"))
        names = tuple(f"{sum(each.rates):.0f}/s {each.candidate}" for each in judge.verdicts[before:])
        made.append(Trial(given(judged), *others, names, max(each.cpu_s for each in judge.verdicts)))
    return made


def kept_trials(those: tuple[Setting, ...], folder: Path | None) -> list[Trial]:
    """From the folder where they are there, else made, and left there."""
    if folder is None:
        return trials(those)
    path = folder / f"{those[0].trace}_{those[0].slo_ms:g}_{those[0].fps:g}.json"
    if path.exists():
        return [_trial_of(kept) for kept in json.loads(path.read_text(encoding="utf-8"))]
    made = trials(those)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in made], indent=1), encoding="utf-8")
    return made


def _trial_of(kept: dict[str, Any]) -> Trial:
    systems = (Given(**kept[name]) for name in ("judged", "jellyfish", "middle", "low"))
    return Trial(*systems, tuple(kept["served"]), kept["cpu_s"])


def given(summaries: Sequence[NetworkSummary]) -> Given:
    accuracy, miss_rate = (np.mean([getattr(each, what) for each in summaries]) for what in ("accuracy", "miss_rate"))
    return Given(float(accuracy), float(miss_rate))


def main() -> None:
    if not SHARED.is_dir():
        raise SystemExit("the traces are not here; this benchmark needs ../shared/data")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", type=Path, help="folder for what each judge's settings gave, so that a run can be gone on with"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    bench = Benchmark("jellyfish_judged", TESTED[0])
    every = [setting for trace in ("synthetic", "wifi") for setting in settings(trace)]
    every.sort(key=lambda setting: (setting.trace, setting.slo_ms, setting.fps, -setting.clients))
    by_judge = [tuple(those) for _, those in groupby(every, lambda one: (one.trace, one.slo_ms, one.fps))]
    tried_all = outcomes(by_judge, partial(kept_trials, folder=options.keep), options.processes)
    found = dict(zip(every, chain.from_iterable(tried_all), strict=True))
    as_good = beats_low = middle_in_time = beats_middle = 0
    least, worst, most_cpu = np.inf, 0.0, 0.0
    for setting, tried in found.items():
        accuracy, own = tried.judged.accuracy, tried.jellyfish.accuracy
        miss, middle = tried.judged.miss_rate, tried.middle.miss_rate
        as_good += accuracy >= own - SAME
        beats_low += accuracy > tried.low.accuracy
        least = min(least, accuracy - own)
        if can_be_mapped(setting):
            worst = max(worst, miss)
        if middle <= MOST_MISSED:
            middle_in_time += 1
            beats_middle += accuracy > tried.middle.accuracy
        most_cpu = max(most_cpu, tried.cpu_s)
        bench.row(
            trace=setting.trace,
            slo_ms=setting.slo_ms,
            fps=setting.fps,
            clients=setting.clients,
            **{"judged miss %": 100 * miss, "judged accuracy": accuracy, "jellyfish accuracy": own},
            **{"jellyfish miss %": 100 * tried.jellyfish.miss_rate},
            **{"B_M miss %": 100 * middle, "B_M accuracy": tried.middle.accuracy},
            served="; ".join(tried.served),
        )
    what = f"settings of {len(every)} where the judged default is at least as accurate as Jellyfish (to {SAME})"
    bench.claim(what, paper="none", target=f"{len(every)}", ours=as_good, met=as_good == len(every))
    bench.row(what="least difference of accuracy to Jellyfish's", value=float(least))
    what = "worst miss rate of the judged default where clients can be mapped at all, %"
    bench.claim(what, paper="none", target="≤ 1", ours=100 * worst, met=worst <= MOST_MISSED)
    what = f"settings of {len(every)} where the judged default is more accurate than B_L"
    bench.claim(what, paper="all", target=f"{len(every)}", ours=beats_low, met=beats_low == len(every))
    what = "settings where the judged default is more accurate than B_M, of those where B_M misses at most 1%"
    met = beats_middle == middle_in_time
    bench.claim(what, paper="lower in some", target=f"{middle_in_time}", ours=beats_middle, met=met)
    bench.row(what="most CPU of one verdict, s", value=most_cpu)
    bench.finish()


if __name__ == "__main__":
    main()
