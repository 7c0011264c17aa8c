"""Edge RL, figures 2 to 6: learning curves of the committed policies, learned batch sizes, and other latencies.

Curves are those of the trainings (edge_rl_training), on the validation's seeds; figure 3 is measured here, on a seed
that neither training nor validation uses. Draws figure 2 as docs/edge_rl_curves.png where
matplotlib is there.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edge_rl_ground import MAIN, PERIODIC, PUBLISHED, SLO_MS, Row, hybrid, in_world, of_policy, policy_file, stationary
from edge_rl_training import LATENCIES_MS
from harness import RESULTS, Benchmark

from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.planner import default_policies
from stretto.planners.edge_rl.policy import Description
from stretto.training.world import System

CURVES = RESULTS / "edge_rl"
FIGURES = {
    "figure 2": ("partial~alone", "full~alone"),
    "figure 4": ("batching_partial", "batching_full"),
    "figure 6": ("periodic_partial", "periodic_full"),
}
DRAWN = (
    ("phase unknown, alone", "partial", "alone"),
    ("phase unknown, taught first", "partial", "taught"),
    ("told the phase, alone", "full", "alone"),
)
SLOTS = 60_000
GENERAL_SECONDS = 20_000  # a million of its slots
P98 = 0.02
LIGHT = 0.7769
PARTIAL_AIM = (79.24, 1.45)  # goodput and violations, %


def curve_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((CURVES / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def latencies(bench: Benchmark) -> None:
    """Figure 3: partial and full observability and SA, by required latency; beside them the package's own policy, which
    fits any. Where no policy was trained for a latency, its column stays empty and the claim is not met.
    """
    worst = {"partial": 0.0, "full": 0.0}
    least = 1.0
    measured: dict[str, list[int]] = {kind: [] for kind in worst}
    (general,) = default_policies()
    for slo_ms in bench.steps(LATENCIES_MS, len(LATENCIES_MS), "latencies"):
        served = hybrid(float(slo_ms))
        system = System(served, MAIN)
        told = system.description(Description("joint", 1.0, sees_phase=True))
        crew, slo_ns = instances_of(served), served.applications[0].slo_ns
        row: dict[str, Any] = {}
        approximated = in_world(system, told, stationary(crew, MAIN, slo_ns), slots=SLOTS).overall
        row["SA"], row["SA violations"] = 100 * approximated.goodput, 100 * approximated.violations
        any_setting = in_world(system, general.description, general.decide, slots=GENERAL_SECONDS).overall
        row["general"], row["general violations"] = 100 * any_setting.goodput, 100 * any_setting.violations
        for kind in worst:
            name = kind if slo_ms == SLO_MS else f"latency_{slo_ms}_{kind}"
            if not policy_file(name).exists():
                continue
            measured[kind].append(slo_ms)
            figures = of_policy(name, MAIN, served, slots=SLOTS).overall
            row[kind], row[f"{kind} violations"] = 100 * figures.goodput, 100 * figures.violations
            worst[kind] = max(worst[kind], figures.violations)
            if kind == "partial":
                least = min(least, figures.goodput)
        bench.row(figure="figure 3", required_ms=slo_ms, **row)
    for kind, violations in worst.items():
        where, is_whole = trained_for(measured[kind])
        what = f"figure 3, {kind} observability: most violations at any required latency, %{where}"
        met = is_whole and violations <= P98
        bench.claim(what, paper="below 2", target="≤ 2", ours=100 * violations, met=met)
    where, is_whole = trained_for(measured["partial"])
    what = "figure 3, partial observability: least goodput at any required latency, %, against light instances alone"
    met = is_whole and least > LIGHT
    bench.claim(what + where, paper="above 77.69", target="> 77.69", ours=100 * least, met=met)


def trained_for(latencies_ms: list[int]) -> tuple[str, bool]:
    """What a claim must add where some latencies have no policy; whether all have one."""
    if len(latencies_ms) == len(LATENCIES_MS):
        return "", True
    return f" (trained for {', '.join(map(str, latencies_ms))} ms alone)", False


def curves(bench: Benchmark) -> None:
    """Figures 2, 4, 5 and 6: where each curve began and ended."""
    for figure, names in FIGURES.items():
        for name in names:
            rows = curve_of(name)
            for row in (rows[0], rows[-1]):
                kept = {key: value for key, value in row.items() if key != "weight"}
                bench.row(figure=figure, policy=name, **kept)
            gained = 100 * (rows[-1]["overall_goodput"] - rows[0]["overall_goodput"])
            what = f"{figure}, {name}: goodput gained after the first validation, points"
            bench.claim(what, paper="rises", target="> 0", ours=gained, met=gained > 0)
    lull = max(curve_of(name)[-1][f"normal_model{model}_least"] for name in FIGURES["figure 4"] for model in (0, 1))
    what = "figure 5: mean smallest batch in lulls, the largest of both models and observabilities"
    bench.claim(what, paper="small", target="≤ 2", ours=lull, met=lull <= 2)


def package_policy(bench: Benchmark) -> None:
    """The package's own policy, phase unknown, against the figures of table 2 with partial observability."""
    (general,) = default_policies()
    goodput, violations = PARTIAL_AIM
    for title, load in (("main", MAIN), ("periodic", PERIODIC)):
        did = in_world(System(hybrid(), load), general.description, general.decide, slots=SLOTS)
        bench.row(figure="package policy", load=title, **Row("general", did).values())
        right, wrong = 100 * did.overall.goodput, 100 * did.overall.violations
        paper = PUBLISHED[title]["RL-PO"].overall
        what = f"the package's policy, each {general.description.slot_s:g} s, phase unknown, {title} load: "
        bench.claim(what + "goodput, %", paper=paper[0], target=f"≥ {goodput}", ours=right, met=right >= goodput)
        met = wrong <= violations
        bench.claim(what + "violations, %", paper=paper[1], target=f"≤ {violations}", ours=wrong, met=met)


def draw() -> None:
    """Figure 2; more curves in one picture cannot be told apart."""
    from stretto.report.learning import learning_figure
    from stretto.report.plots import save

    save(
        learning_figure({name: CURVES / f"{kind}~{way}.json" for name, kind, way in DRAWN}),
        Path(__file__).parent.parent / "docs" / "edge_rl_curves.png",
    )


def main() -> None:
    """All figures."""
    bench = Benchmark("edge_rl_figures", seed=9001)
    curves(bench)
    latencies(bench)
    package_policy(bench)
    if find_spec("matplotlib") is not None:
        draw()
    bench.finish()


if __name__ == "__main__":
    main()
