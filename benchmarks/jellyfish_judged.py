"""The judged default with network knowledge, on Jellyfish's settings: its accuracy and misses beside Jellyfish's own.

For each setting the judge sees clients like those that come (their rates, SLOs, delays and two minutes of bandwidths
from elsewhere in the trace), on seeds of its own; the runs are on seeds that it never saw. Verdicts are remembered
between the runs of a setting, as a server remembers them. 60 s and two seeds each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
class Trial:
    """What one setting gave."""

    judged: tuple[NetworkSummary, ...]
    jellyfish: tuple[NetworkSummary, ...]
    middle: tuple[NetworkSummary, ...]
    served: tuple[str, ...]
    cpu_s: float


def judge_for(setting: Setting) -> SpotJudge:
    known = tuple(conditions_of(client, HISTORY_S) for client in clients_of(setting, JUDGE_SEED))

    def conditions(served: Deployment) -> Conditions:
        rate = sum(client.rate for client in known)
        return Conditions({served.applications[0].name: ArrivalStretch(rate)}, delays=Delays(), clients=known)

    return SpotJudge(conditions)


def trial(setting: Setting) -> Trial:
    judge = judge_for(setting)
    served = deployment(setting.workers, setting.slo_ms)
    judged = []
    for seed in TESTED:
        session = served_session("judged", ports=Ports(judge=judge))
        clients = clients_of(setting, seed)
        period_s = session.rhythm.period_for(served)
        result = simulate_network(
            served, session, clients, seconds=SECONDS, seed=seed, service=Empirical(), replan_s=period_s
        )
        judged.append(result.summary)
    own, middle = (tuple(run(setting, name, seed).summary for seed in TESTED) for name in ("jellyfish", "B_M"))
    names = tuple(f"{sum(each.rates):.0f}/s {each.candidate}" for each in judge.verdicts)
    return Trial(tuple(judged), own, middle, names, max(each.cpu_s for each in judge.verdicts))


def with_one_more(setting: Setting) -> float:
    """What B_M, which cannot step back, misses if another client comes: the judge must reckon with that."""
    more = replace(setting, clients=setting.clients + 1)
    return mean(tuple(run(more, "B_M", seed).summary for seed in TESTED), "miss_rate")


def mean(summaries: tuple[NetworkSummary, ...], what: str) -> float:
    return float(np.mean([getattr(each, what) for each in summaries]))


def main() -> None:
    if not SHARED.is_dir():
        raise SystemExit("the traces are not here; this benchmark needs ../shared/data")
    bench = Benchmark("jellyfish_judged", TESTED[0])
    every = [setting for trace in ("synthetic", "wifi") for setting in settings(trace)]
    every.sort(key=lambda setting: -setting.clients)  # the longest first, so that no core is idle at the end
    found = dict(zip(every, outcomes(every, trial), strict=True))
    as_good = middle_in_time = beats_middle = 0
    least, worst, most_cpu = np.inf, 0.0, 0.0
    behind: list[Setting] = []
    for setting, tried in found.items():
        accuracy, own = mean(tried.judged, "accuracy"), mean(tried.jellyfish, "accuracy")
        miss, middle = mean(tried.judged, "miss_rate"), mean(tried.middle, "miss_rate")
        as_good += accuracy >= own - SAME
        least = min(least, accuracy - own)
        if can_be_mapped(setting):
            worst = max(worst, miss)
        if middle <= MOST_MISSED:
            middle_in_time += 1
            is_ahead = accuracy > mean(tried.middle, "accuracy")
            beats_middle += is_ahead
            behind += [] if is_ahead else [setting]
        most_cpu = max(most_cpu, tried.cpu_s)
        bench.row(
            trace=setting.trace,
            slo_ms=setting.slo_ms,
            fps=setting.fps,
            clients=setting.clients,
            **{"judged miss %": 100 * miss, "judged accuracy": accuracy, "jellyfish accuracy": own},
            **{"jellyfish miss %": 100 * mean(tried.jellyfish, "miss_rate")},
            **{"B_M miss %": 100 * middle, "B_M accuracy": mean(tried.middle, "accuracy")},
            served="; ".join(tried.served),
        )
    what = f"settings of {len(every)} where the judged default is at least as accurate as Jellyfish (to {SAME})"
    bench.claim(what, paper="none", target=f"{len(every)}", ours=as_good, met=as_good == len(every))
    bench.row(what="least difference of accuracy to Jellyfish's", value=float(least))
    what = "worst miss rate of the judged default where clients can be mapped at all, %"
    bench.claim(what, paper="none", target="≤ 1", ours=100 * worst, met=worst <= MOST_MISSED)
    what = "settings with accuracy above B_M, of those where B_M misses at most 1%"
    bench.row(what=what, value=f"{beats_middle} of {middle_in_time}")
    for setting, more in zip(behind, outcomes(behind, with_one_more), strict=True):
        bench.row(what=f"B_M as accurate or more: {setting}; its misses with one client more, %", value=100 * more)
    bench.row(what="most CPU of one verdict, s", value=most_cpu)
    bench.finish()


if __name__ == "__main__":
    main()
