"""STRETTO_PURE=1: the same rules as plain Python, with the same decisions, and an index outside its array shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
THOUSANDS = "not frequencies and not deal_alone"  # of draws, which take a minute as plain Python

DECISIONS = """
import random
from stretto.core.compiled import CompiledFunction
from stretto.core.plan import AdaptiveCap, Late, MostAccurate, Order, RouteRule
from stretto.dispatch import events
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.small import deployed, lane, planned, straight, variant

print(isinstance(events.report, CompiledFunction))
chosen = random.Random(7)
DROPPING = Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE
rules = {"select": MostAccurate((1, 0)), "adaptive_cap": AdaptiveCap(target_ns=60), "floor_rates": (0.0, 1e7, 3e7)}
lanes = [lane(f"l{n}", (n, 3), late=late, order=order, capacity=500, **rules)
         for n, (late, order) in enumerate(zip((*DROPPING, DROPPING[0]), Order))]
on = deployed(variant("fast", straight(2, 10)), variant("slow", straight(5, 20), load_ns=9), crew=4)
made = Dispatcher(on, planned(*lanes, rule=RouteRule.WEIGHTED, weights=(0.2, 0.5, 0.3), seed=2**63 + 11),
                  correction=0.1)
now, due, decided = 0, [], []
for number in range(400):
    now += chosen.choice((0, 1, 2, 5, 30))
    for end, worker in sorted(entry for entry in due if entry[0] <= now):
        due.remove((end, worker))
        made.finished(now, worker, True, chosen.randrange(8, 40))
    made.submit(now, 0, now + chosen.choice((9, 14, 30, 80, 300)), number, priority=number % 5)
    made.advance(now)
    for decision in made.decisions():
        decided.append(decision)
        if isinstance(decision, Run):
            due.append((int(decision.expected_ns), int(decision.worker)))
for decision in decided:
    print(decision)
print(made.telemetry(now).rates, made.latency_ratio(), made.counts(), made.lines(3))
"""

OUTSIDE = """
import numpy as np
from stretto.core.compiled import compiled
from stretto.dispatch.dispatcher import Dispatcher
from stretto.dispatch.records import int64s, lanes, queries
from tests.dispatch.small import deployed, lane, planned

made = Dispatcher(deployed(), planned(lane()))

@compiled
def waiting(state, index):
    return lanes(state[0])[index].length

@compiled
def end(state, index):
    return int64s(state[0].ends_at, state[0].ends_count)[index]

@compiled
def set_end(state, index):
    int64s(state[0].ends_at, state[0].ends_count)[index] = 5

print(waiting(made.memory.state, 0))
for rule, outside in ((waiting, (-1, 1)), (end, (-1, len(made.memory["ends"]))), (set_end, (-1, 10**6))):
    for index in outside:
        try:
            rule(made.memory.state, index)
            print("nothing was said")
        except IndexError as error:
            print(error)
try:
    compiled(lambda state: state[0].no_such_field)(made.memory.state)
except AttributeError as error:
    print(error)
"""


def run(*command: str, pure: bool) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "STRETTO_PURE": "1" if pure else "",
    }
    ended = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_both_halves_decide_the_same() -> None:
    """Draws, ratios, rates and every decision, to the last digit."""
    was_compiled, _, compiled = run("-c", DECISIONS, pure=False).partition("\n")
    is_compiled, _, pure = run("-c", DECISIONS, pure=True).partition("\n")
    assert (was_compiled, is_compiled) == ("True", "False")
    assert "Run(" in pure and "Drop(" in pure and pure == compiled


def test_an_index_outside_an_array_shows() -> None:
    """A rule that read the slot before the first one passed every compiled test."""
    first, *told, field = run("-c", OUTSIDE, pure=True).splitlines()
    assert first == "0" and "no field no_such_field" in field
    assert len(told) == 6 and all("is outside an array of" in line for line in told)


@pytest.mark.parametrize("part", ["test_late.py", "test_memory.py", "test_routes.py", "test_strategies.py"])
def test_tests_of_the_rules_pass_as_plain_python(part: str) -> None:
    quietly = "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"
    told = run(*quietly, "-k", THOUSANDS, f"tests/dispatch/{part}", pure=True)
    assert " passed" in told and "failed" not in told
