"""Edge RL, table 2 whole: every approach on the switching load and on its periodic twin, beside the published rows.

0.6 million slots of a second each, shared by 400 systems; no seed of it was trained or chosen on. Learned policies are
the committed ones of examples/edge. Beyond the paper: policies that decide each quarter of a second, and one shared
queue in which light instances leave queries for heavy ones.

Where a published row is not reached, why: rows HW and HW-E need different service times of the same instances, and what
weights that change each second can do at best (`edge_rl_bound`), beside rules that were chosen by hand on another seed.
"""

from __future__ import annotations

from dataclasses import replace

from edge_rl_bound import least_violations, most_goodput
from edge_rl_ground import (
    MAIN,
    PERIODIC,
    PUBLISHED,
    SYSTEMS,
    Row,
    all_of,
    batching,
    by_hand,
    hybrid,
    in_world,
    infaas,
    of_plan,
    of_policy,
    stationary,
    unequal,
)
from harness import Benchmark

from stretto.planners.edge_rl.baselines import Heavyweight, Lightweight, SingleQueue
from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.policy import Description
from stretto.planners.leave_it import LeaveIt
from stretto.sim.switching import Switching
from stretto.training.evaluate import Evaluation, Figures
from stretto.training.teacher import teacher
from stretto.training.world import System

GOODPUT_POINTS, VIOLATION_POINTS = 0.3, 0.5
RL_AIMS = {"RL-PO": (79.24, 1.45), "RL-FO": (80.14, 0.40)}
LEAVE_AIM = (81.0, 0.01)
QUICK = ", each 0.25 s"
SA_SLOT_S, INFAAS_SLOT_S = 1.0, 0.1
HW_REFUSED = 0.4811  # of a burst, published in row HW
UNEQUAL = ((0.22, 0.78), (0.22, 0.75), (0.22, 0.53))  # shares of lulls at each of the heavy instances


def baselines(load: Switching) -> dict[str, Evaluation]:
    """By name as published, with our further readings."""
    served = hybrid()
    crew = instances_of(served)
    system = System(served, load)
    slo_ns = served.applications[0].slo_ns
    told = system.description(Description("joint", SA_SLOT_S, sees_phase=True))
    at_once = system.description(Description("joint", 0.1, sees_phase=True))
    return {
        "LW": of_plan(all_of(4, 0), Lightweight(), load),
        "HW": of_plan(all_of(0, 4), Heavyweight(), load),
        "HW-E": of_plan(all_of(0, 4), Heavyweight(early=True), load),
        "SQ": of_plan(served, SingleQueue(), load),
        "SQ, heavy first": of_plan(served, SingleQueue(prefer_accurate=True), load),
        "SA": in_world(system, told, stationary(crew, load, slo_ns, tenths=True)),
        "SA, exact shares": in_world(system, told, stationary(crew, load, slo_ns)),
        "SA, exact shares, told each 0.1 s": in_world(system, at_once, stationary(crew, load, slo_ns)),
        "INFaaS": in_world(system, system.description(Description("joint", INFAAS_SLOT_S)), infaas(crew, SYSTEMS)),
        "shared queue, leave it": of_plan(served, LeaveIt(), load),
    }


def learned(load: Switching) -> dict[str, Evaluation]:
    """The committed policies."""
    if load.is_periodic:
        names = {"RL-PO": "periodic_partial", "RL-FO": "periodic_full"}
        quick = {f"RL-PO{QUICK}": "periodic_partial_quick", f"RL-FO{QUICK}": "periodic_full_quick"}
        return {row: of_policy(name, load) for row, name in (names | quick).items()}
    names = {"RL-PO": "partial", "RL-FO": "full", "RL-FO, violations weighed to 0.4%": "full_strict"}
    names |= {f"RL-PO{QUICK}": "partial_quick", f"RL-FO{QUICK}": "full_quick"}
    rows = {row: of_policy(name, load) for row, name in names.items()}
    for row, name in (("RL-PO-B", "batching_partial"), ("RL-FO-B", "batching_full")):
        rows[row] = of_policy(name, load, batching(hybrid()))
    return rows


def main() -> None:
    """Both loads."""
    bench = Benchmark("edge_rl_table2", seed=9001)
    results = {}
    for title, load in (("main", MAIN), ("periodic", PERIODIC)):
        rows = baselines(load) | learned(load)
        results[title] = rows
        for name, evaluation in rows.items():
            paper = PUBLISHED[title].get(name)
            published = {} if paper is None else {"paper goodput": paper[0], "paper violations": paper[1]}
            bench.row(load=title, **Row(name, evaluation).values(), **published)
    contradicts = claim_contradiction(bench)
    for name in ("LW", "HW", "HW-E", "SQ", "SA", "INFaaS"):
        claim_near(bench, name, results["main"][name], is_explained=name == "HW" and contradicts)
    claim_learned(bench, results)
    rules(bench)
    claim_bound(bench)
    leave = results["main"]["shared queue, leave it"].overall
    for what, ours, aim, met in (
        ("goodput, %", 100 * leave.goodput, f"≥ {LEAVE_AIM[0]}", 100 * leave.goodput >= LEAVE_AIM[0]),
        ("violations, %", 100 * leave.violations, f"≤ {LEAVE_AIM[1]}", 100 * leave.violations <= LEAVE_AIM[1]),
    ):
        bench.claim(f"shared queue, leave it, phase unknown: {what}", paper=None, target=aim, ours=ours, met=met)
    bench.finish()


def claim_contradiction(bench: Benchmark) -> bool:
    """Row HW refuses 48% of a burst, so that four instances answer 93 queries/s; in row HW-E they answer 120. With the
    service time that row HW needs, row HW-E is far off.
    """
    ms = 4e3 / (MAIN.rates[1] * (1 - HW_REFUSED))
    kept, early = (
        of_plan(all_of(0, 4, ms), planner, MAIN).overall for planner in (Heavyweight(), Heavyweight(early=True))
    )
    bench.row(load="main", approach=f"HW, heavy in {ms:.1f} ms", **shares(kept))
    bench.row(load="main", approach=f"HW-E, heavy in {ms:.1f} ms", **shares(early))
    paper = PUBLISHED["main"]["HW-E"][0]
    ours = 100 * early.goodput
    what = f"HW-E in the {ms:.1f} ms that the refusals of row HW need: goodput, %; no service time gives both rows"
    differs = abs(ours - paper) > GOODPUT_POINTS
    bench.claim(what, paper=paper, target=f"not within {GOODPUT_POINTS} points", ours=ours, met=differs)
    return differs


def shares(figures: Figures) -> dict[str, float]:
    """For a row, in percent."""
    return {"overall goodput": 100 * figures.goodput, "overall violations": 100 * figures.violations}


def rules(bench: Benchmark) -> None:
    """What weights that change each second can do, by hand."""
    system = System(hybrid(), MAIN)
    description = system.description(Description("joint", 1.0))
    unknown = in_world(system, description, teacher(by_hand(), system, 1.0)).overall
    bench.row(load="main", approach="by hand, each second", **shares(unknown))
    told = replace(description, sees_phase=True)
    for one, other in UNEQUAL:
        did = in_world(system, told, teacher(unequal(one, other), system, 1.0)).overall
        name = f"by hand, each second, told the phase, {one:.0%} and {other:.0%} of a lull at the heavy ones"
        bench.row(load="main", approach=name, **shares(did))


def claim_bound(bench: Benchmark) -> None:
    """Why the row of RL-FO is not reached each second: no policy that deals by weights reaches it."""
    goodput, violations = RL_AIMS["RL-FO"]
    told = "any policy told the phase each second: "
    most, least = 100 * most_goodput(violations / 100), 100 * least_violations(goodput / 100)
    what = f"{told}most goodput with violations ≤ {violations}%, short of RL-FO's, %"
    bench.claim(what, paper=None, target=f"< {goodput}", ours=most, met=most < goodput)
    what = f"{told}least violations with goodput ≥ {goodput}%, above RL-FO's, %"
    bench.claim(what, paper=None, target=f"> {violations}", ours=least, met=least > violations)


def claim_near(bench: Benchmark, name: str, evaluation: Evaluation, is_explained: bool = False) -> None:
    """As published, within the tolerance; or the reason is shown."""
    paper = PUBLISHED["main"][name]
    overall = evaluation.overall
    for what, ours, theirs, points in (
        ("goodput", 100 * overall.goodput, paper[0], GOODPUT_POINTS),
        ("violations", 100 * overall.violations, paper[1], VIOLATION_POINTS),
    ):
        near = abs(ours - theirs) <= points
        target = f"within {points} points" + ", or the reason shown (row HW-E)" * is_explained
        bench.claim(f"{name}: {what}, %", paper=theirs, target=target, ours=ours, met=near or is_explained)


def claim_learned(bench: Benchmark, results: dict[str, dict[str, Evaluation]]) -> None:
    """The figures of the paper, in its slots and in shorter ones; order and batching. The paper fixes slots of a second
    (5.1.1): what shorter ones reach is labelled so.
    """
    for slot in ("", QUICK):
        label = slot or ", each second as published"
        for name, (goodput, violations) in RL_AIMS.items():
            overall = results["main"][name + slot].overall
            right, wrong = 100 * overall.goodput, 100 * overall.violations
            paper = PUBLISHED["main"][name]
            bench.claim(
                f"{name}{label}: goodput, %", paper=paper[0], target=f"≥ {goodput}", ours=right, met=right >= goodput
            )
            what = f"{name}{label}: violations, %"
            bench.claim(what, paper=paper[1], target=f"≤ {violations}", ours=wrong, met=wrong <= violations)
        for title, rows in results.items():
            partial, full = (100 * rows[f"RL-{kind}{slot}"].overall.goodput for kind in ("PO", "FO"))
            what = f"{title}{label}: goodput with full over partial observability, points"
            bench.claim(
                what,
                paper=PUBLISHED[title]["RL-FO"][0] - PUBLISHED[title]["RL-PO"][0],
                target="> 0",
                ours=full - partial,
                met=full > partial,
            )
    for plain in ("RL-PO", "RL-FO"):
        before, after = (100 * results["main"][name].overall.violations for name in (plain, f"{plain}-B"))
        what = f"{plain}-B: violations, %, against {before:.3f} without batches"
        bench.claim(
            what, paper=PUBLISHED["main"][f"{plain}-B"][1], target=f"< {before:.3f}", ours=after, met=after < before
        )


if __name__ == "__main__":
    main()
