"""Every planner that is listed: on unequal workers too; ports as declared; and planners of a user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.entry import DATA_AWARE, Entry
from stretto.planners.ports import LooksAtEvidence, Ports
from stretto.planners.promise import PolicyPlanner
from stretto.planners.registry import ENTRIES, planner_entry
from stretto.planning.served import served_session
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measured_responses
from stretto.sim.simulator import simulate
from stretto.sim.trial import simulated_trial
from tests.planners.parts.port import HandPort

RATES = (150.0, 50.0)
QUICK = {"slack_steps": 20, "queries": 1_000, "max_queue": 8}  # where a planner has such an option


def fleet(fast: int, slow: int) -> Deployment:
    """Two applications whose variants run on both kinds, three times as long on the slow one."""

    def variant(name: str, accuracy: float, alpha: float, beta: float) -> Variant:
        slower = LatencyProfile.linear(3 * alpha, 3 * beta, 16, "slow")
        return Variant(name, accuracy, (LatencyProfile.linear(alpha, beta, 16, "fast"), slower))

    variants = (variant("quick", 0.6, 0.5, 1.5), variant("good", 0.8, 1.0, 4.0))
    applications = tuple(Application(name, 100 * NS_PER_MS, variants) for name in ("first", "second"))
    return Deployment(applications, workers(fast, "fast") + workers(slow, "slow"))


@pytest.mark.parametrize("counts", [(1, 7), (7, 1), (4, 4)], ids=str)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_unequal_workers_are_planned_for(entry: Entry, counts: tuple[int, int]) -> None:
    deployment = fleet(*counts)
    responses = None
    if "responses" in entry.ports:
        responses = already_measured(measured_responses(deployment, (20.0, 100.0), rates=RATES, seconds=0.5))
    options = {option.name: QUICK[option.name] for option in entry.options if option.name in QUICK}
    planner = entry.make(options, ports=Ports(trial=simulated_trial, responses=responses))
    plan = planner(View(deployment, expected_rates=RATES))
    check_plan(plan, deployment)
    source = Load(Poisson(), sum(RATES))
    run = simulate(deployment, planner, source, seconds=1.0, replan_s=entry.replan_s, expected_rates=RATES).summary
    assert sum(run.outcomes.values()) + run.unfinished == run.submitted > 0
    assert run.unfinished == 0
    assert run.on_time_rate > 0.5


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_gets_the_ports_that_it_names(entry: Entry) -> None:
    ports = Ports(policies=HandPort(), trial=simulated_trial, responses=already_measured({}))
    planner = entry.make(ports=ports)
    assert all(vars(planner)[name] is vars(ports)[name] for name in entry.ports)
    assert isinstance(planner, PolicyPlanner) == ("stored" in entry.ports)
    looks = isinstance(planner, LooksAtEvidence) and planner.looks_at_evidence
    assert looks == (entry.name == "sneakpeek")


def stated(text: str) -> object:
    """A number or a flag; None where people read words."""
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_default_that_people_read_is_the_planner_s_own(entry: Entry) -> None:
    planner = entry.make()
    for option in entry.options:
        wanted = stated(option.default)
        name, unit = (option.name[:-3] + "_ns", NS_PER_MS) if option.name.endswith("_ms") else (option.name, 1)
        if wanted is not None and (option != DATA_AWARE or entry.by_windows):  # which others are made without
            value = getattr(planner, name)
            assert (value if isinstance(value, bool) else value / unit) == wanted, option.name


OWN = """
from dataclasses import dataclass
from stretto.core.plan import Fixed, Lane, by_application

def lanes(view):
    every = tuple(range(len(view.deployment.workers)))
    first = view.deployment.first_variant
    return tuple(Lane(a.name, every, Fixed(v)) for a, v in zip(view.deployment.applications, first))

def plan(view):
    return by_application(lanes(view), planner="mine")

def make():
    def planned(view):
        return plan(view)
    planned.replan_s = 0.5
    return planned

@dataclass
class Mine:
    replan_s: float = 0.25
    looks_at_evidence = True
    def __call__(self, view):
        return plan(view)

class Needy:
    def __init__(self, what):
        self.what = what

def nothing(view):
    return None

def number():
    return 7

def unmade():
    raise LookupError("no weights")

def raises(view):
    return {}["size"]

def ends(view):
    raise SystemExit(3)

def nowhere(view):
    from dataclasses import replace
    made = plan(view)
    return replace(made, lanes=tuple(replace(lane, workers=(99,)) for lane in made.lanes))

@dataclass
class Networked(Mine):
    knows_networks: bool = True

def seldom():
    return Mine(replan_s=float("inf"))

def often():
    return Mine(replan_s=0)

constant = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_planners.py").write_text(OWN)
    (tmp_path / "broken_planners.py").write_text("import no_such_thing_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("my_planners", "broken_planners"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("attribute", "replan_s"), [("plan", None), ("make", 0.5), ("Mine", 0.25)])
def test_a_planner_of_one_s_own(attribute: str, replan_s: float | None) -> None:
    entry = planner_entry(f"my_planners:{attribute}")
    assert entry.replan_s == replan_s and entry.name == f"my_planners:{attribute}"
    planner = entry.make()
    deployment = fleet(1, 1)
    plan = planner(View(deployment))
    assert isinstance(plan, Plan) and plan.planner == "mine"
    check_plan(plan, deployment)
    looks = isinstance(planner, LooksAtEvidence) and planner.looks_at_evidence
    assert looks == (attribute == "Mine")
    with pytest.raises(StrettoError, match="has no option"):
        entry.make({"step": 1})
    with pytest.raises(StrettoError, match="name none"):
        entry.make(variants={"first": "quick"})


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("nowhere_to_be_found:plan", "there is no module 'nowhere_to_be_found', here or installed"),
        ("my_planners.inner:plan", "cannot be imported|there is no module"),
        ("my_planners:none", "module 'my_planners' has no 'none'"),
        ("my_planners:constant", "my_planners:constant is an int, which cannot be called"),
        ("my_planners:number", "my_planners:number gave an int, which cannot be called"),
        ("my_planners:Needy", "class my_planners:Needy needs arguments"),
        ("my_planners:often", "replan_s of planner my_planners:often"),
        ("my_planners:seldom", "replan_s of planner my_planners:seldom .* to each week"),
        (
            "my_planners:unmade",
            r"my_planners:unmade made no planner: LookupError: no weights \(my_planners.py, line \d+\)",
        ),
        ("broken_planners:plan", "module 'broken_planners' cannot be imported: No module named 'no_such_thing_at_all'"),
        (":plan", "as MODULE:ATTRIBUTE"),
        ("my_planners:", "as MODULE:ATTRIBUTE"),
    ],
)
def test_what_is_no_planner_is_refused_in_a_sentence(reference: str, sentence: str) -> None:
    with pytest.raises(StrettoError, match=sentence):
        planner_entry(reference)


@pytest.mark.usefixtures("own")
def test_a_planner_without_a_plan_is_told() -> None:
    planner = planner_entry("my_planners:nothing").make()
    with pytest.raises(StrettoError, match="planner my_planners:nothing returned a NoneType and no Plan"):
        planner(View(fleet(1, 1)))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("raises", r"planner my_planners:raises failed: KeyError: 'size' \(my_planners\.py, line \d+\)"),
        ("ends", r"planner my_planners:ends failed: SystemExit: 3"),
        ("nowhere", r"planner my_planners:nowhere failed: lane \w+ names a worker outside 0 … 1"),
    ],
)
def test_what_a_user_s_planner_does_wrong_is_a_sentence(attribute: str, sentence: str) -> None:
    """They ended commands, and a server that starts, with a traceback of ours; `sys.exit` any server."""
    session = served_session(f"my_planners:{attribute}")
    with pytest.raises(StrettoError, match=sentence):
        session.first(fleet(1, 1))


@pytest.mark.usefixtures("own")
def test_a_user_s_planner_may_know_networks() -> None:
    assert served_session("my_planners:Networked").knows_networks
    assert not served_session("my_planners:Mine").knows_networks
