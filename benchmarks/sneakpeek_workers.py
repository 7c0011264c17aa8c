"""SneakPeek on several workers: figure 16. The setting is that of benchmarks/windows.py, 200 windows a point, seed 1.

16a: two workers, deadlines from 50 to 400 ms. 16b: one to four workers, 150 ms. Beyond the paper, unequal workers: one
as it is and one half as fast. A group is no larger than one worker's even share of the window.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import windows
from harness import Benchmark

from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile
from stretto.core.worker import Worker

WINDOWS = 200
NAMES = ("LO-EDF", "LO-Priority", "Grouped", "SneakPeek")
DEADLINES_MS = (50, 100, 150, 200, 300, 400)
COUNTS = (1, 2, 3, 4)


def point(
    bench: Benchmark, figure: str, label: float | str, served: Deployment, deadline_ms: float
) -> dict[str, windows.Score]:
    """Every system in one setting."""
    asked = windows.traffic(
        served, windows=WINDOWS, deadline_ms=deadline_ms, deadline_sd_ms=0.2 * deadline_ms, seed=bench.seed
    )
    found = {name: windows.run(served, windows.SYSTEMS[name](), asked) for name in NAMES}
    for name, score in found.items():
        bench.row(
            figure=figure,
            point=label,
            system=name,
            utility=score.utility,
            accuracy=score.accuracy,
            violations=score.violations,
            from_evidence=score.from_evidence,
        )
    return found


def unequal() -> Deployment:
    """The second worker takes twice the time."""
    served = windows.deployment()
    applications = []
    for application in served.applications:
        variants = []
        for variant in application.variants:
            slow = LatencyProfile(2 * np.array(variant.profiles[0].table_ns), "half")
            variants.append(replace(variant, profiles=(*variant.profiles, slow)))
        applications.append(replace(application, variants=tuple(variants)))
    crew = (*served.workers, Worker("half", "half", windows.MEMORY, ()))
    return Deployment(tuple(applications), crew)


def main() -> None:
    """Both halves of the figure, and unequal workers."""
    bench = Benchmark("sneakpeek_workers")
    two = windows.deployment(2)
    by_deadline = {
        ms: point(bench, "16a", ms, two, ms) for ms in bench.steps(DEADLINES_MS, len(DEADLINES_MS), "deadlines")
    }
    by_count = {
        count: point(bench, "16b", count, windows.deployment(count), windows.DEADLINE_MS)
        for count in bench.steps(COUNTS, len(COUNTS), "workers")
    }
    mixed = point(bench, "unequal", "1 + ½", unequal(), windows.DEADLINE_MS)
    leads = {ms: found["SneakPeek"].utility - found["LO-EDF"].utility for ms, found in by_deadline.items()}
    bench.claim(
        "fig 16a: SneakPeek and Grouped over LO-EDF with two workers, least lead",
        paper="strong benefits",
        target="> 0",
        ours=f"{min(leads.values()):.4f}, "
        f"{min(found['Grouped'].utility - found['LO-EDF'].utility for found in by_deadline.values()):.4f}",
        met=min(leads.values()) > 0,
    )
    gains = [found["Grouped"].utility - found["LO-EDF"].utility for found in by_count.values()]
    bench.claim(
        "fig 16b: lead of Grouped over LO-EDF, " + ", ".join(map(str, COUNTS)) + " workers",
        paper="falls",
        target="falls",
        ours=", ".join(f"{gain:.3f}" for gain in gains),
        met=all(later < earlier for earlier, later in pairwise(gains)),
    )
    one, both = by_count[1]["SneakPeek"], mixed["SneakPeek"]
    equal = by_count[2]["SneakPeek"]
    bench.claim(
        "a second worker half as fast: SneakPeek between one and two equal workers",
        paper="section 7: latency by worker",
        target="between",
        ours=f"{one.utility:.4f} ≤ {both.utility:.4f} ≤ {equal.utility:.4f}",
        met=one.utility <= both.utility + 0.002 and both.utility <= equal.utility + 0.002,
    )
    bench.claim(
        "violations of SneakPeek at 150 ms, highest over workers",
        paper="—",
        target="≤ 0.01",
        ours=max(found["SneakPeek"].violations for found in by_count.values()),
        met=max(found["SneakPeek"].violations for found in by_count.values()) <= 0.01,
    )
    bench.finish()


if __name__ == "__main__":
    main()
