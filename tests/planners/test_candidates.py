"""Candidates: what is tried, by the registry's word; and what is near to one."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment, with_evidence
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.verdict import Candidate
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners import candidates as candidates_module
from stretto.planners.candidates import (
    by_class,
    candidates_for,
    candidates_with_clients,
    for_a_moving_load,
    has_swaps,
    make,
    neighbours,
    rough,
    start_for,
)
from stretto.planners.judged.planner import Judged
from stretto.planners.registry import ENTRIES, planner_entry
from stretto.planners.shared_queue.planner import SharedQueue
from tests.planners.parts.tasks import small_deployment
from tests.sim.network.ladder import ladder


def application(name: str, variants: int) -> Application:
    """Variants in no order of accuracy: the more accurate, the slower."""
    places = [(3 * place + 1) % variants if variants % 3 else place for place in range(variants)]
    made = [Variant(f"v{at}", 0.5 + 0.04 * at, (LatencyProfile.linear(1.0 + at, 3.0 + at, 8),)) for at in places]
    return Application(name, 100 * NS_PER_MS, tuple(made))


def of_planner(found: tuple[Candidate, ...], name: str) -> list[Candidate]:
    return [candidate for candidate in found if candidate.planner == name]


def test_every_product_of_what_is_worth_trying_once() -> None:
    found = candidates_for(small_deployment())
    assert len(set(found)) == len(found)
    tried = {option.name: option.tries for option in planner_entry("shared_queue").options if option.tries}
    count = 1
    for values in tried.values():
        count *= len(values)
    shared = of_planner(found, "shared_queue")
    assert len(shared) == count > 1
    for candidate in shared:
        assert [name for name, _ in candidate.options] == list(tried)
        assert all(value in tried[name] for name, value in candidate.options)


def test_data_aware_forms_are_tried_wherever_evidence_was_measured() -> None:
    plain = application("a", 3)
    recalls = ((0.9, 0.3), (0.3, 0.9), (0.6, 0.6))
    models = tuple(replace(model, recall=recall) for model, recall in zip(plain.variants, recalls, strict=True))
    unasked = Deployment((replace(plain, variants=models, classes=2, evidence_accuracy=0.9),), workers(2))
    asked = with_evidence(unasked, {"a": np.array([[0.8, 0.2], [0.3, 0.7]])})
    before, after = candidates_for(unasked), candidates_for(asked)
    assert not any("data_aware" in dict(each.options) for each in before), "nobody knows what evidence says"
    aware = [each for each in after if dict(each.options).get("data_aware")]
    assert set(before) < set(after) and {each.planner for each in aware} >= {"priced", "joint"}
    priced = next(each for each in aware if each.planner == "priced")
    plan = make(priced)(View(asked, expected_rates=(5.0,)))
    check_plan(plan, asked)
    assert plan.heeds_classes_of == {0} and not make(before[0])(View(asked, expected_rates=(5.0,))).heeds_classes_of
    (plainly,) = by_class(priced)
    assert plainly in before and by_class(plainly) == (priced,)
    assert by_class(Candidate("sneakpeek")) == () == by_class(Candidate("symphony", (), (("a", "v0"),)))
    assert Judged().may_use_evidence(unasked), "before it is loaded, so that it is loaded"
    assert not Judged().may_use_evidence(Deployment((plain,), workers(2)))


def test_only_planners_that_are_to_be_tried() -> None:
    tried = {entry.name: entry.tried for entry in ENTRIES}
    with_choice, without = (
        candidates_for(small_deployment()),
        candidates_for(Deployment((application("a", 1),), workers(2))),
    )
    equal = {"always", "with one kind of worker"}
    assert {tried[candidate.planner] for candidate in with_choice} == equal
    assert {candidate.planner for candidate in with_choice} == {name for name, when in tried.items() if when in equal}
    assert {tried[candidate.planner] for candidate in without} == {"always", "with one variant each"}
    start, *others = without
    assert start == start_for(Deployment((application("a", 1),), workers(2))), "what serves before the first verdict"
    assert all(not planner_entry(candidate.planner).chooses_variants for candidate in others), "nothing to choose"
    assert all(candidate.variants == () for candidate in without)
    several = small_deployment().applications[0], replace(small_deployment().applications[0], name="b")
    offered = {each.planner for each in candidates_for(Deployment(several, workers(2)))}
    assert "joint" in offered and "leave_it" not in offered, "all workers are of one kind"


def test_dear_ones_apart() -> None:
    dear = candidates_for(small_deployment(), dear=True)
    assert {planner_entry(candidate.planner).tried for candidate in dear} == {"where it may gain"}
    assert not set(dear) & set(candidates_for(small_deployment()))
    assert candidates_for(Deployment((application("a", 1),), workers(2)), dear=True) == ()


def test_fixed_variants_are_of_like_rank_in_every_application() -> None:
    deployment = Deployment((application("a", 5), application("b", 2), application("c", 1)), workers(2))
    alone = [dict(candidate.variants) for candidate in of_planner(candidates_for(deployment), "symphony_batch_aware")]
    assert [chosen["a"] for chosen in alone] == ["v0", "v1", "v2", "v3", "v4"]
    assert [chosen["b"] for chosen in alone] == ["v0", "v0", "v0", "v1", "v1"]
    assert {chosen["c"] for chosen in alone} == {"v0"}


def test_of_many_variants_the_most_accurate_are_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates_module, "MOST_VARIANTS", 3)
    alone = of_planner(candidates_for(Deployment((application("a", 5),), workers(2))), "symphony_batch_aware")
    assert [candidate.variants for candidate in alone] == [(("a", name),) for name in ("v2", "v3", "v4")]


def test_neighbours_are_halfway_to_the_next_value_one_option_at_a_time() -> None:
    candidate = Candidate("priced", (("caution", 1.05), ("margin", 0.5)))
    near = neighbours(candidate)
    assert [tuple(round(value, 6) for _, value in other.options) for other in near] == [
        (0.975, 0.5),
        (1.125, 0.5),
        (1.05, 0.35),
        (1.05, 0.65),  # beyond the last value, as far as on the other side
    ]
    lowest = neighbours(Candidate("priced", (("caution", 0.9), ("margin", 0.0))))
    values = [tuple(round(value, 6) for _, value in other.options) for other in lowest]
    assert values == [(0.825, 0.0), (0.975, 0.0), (0.9, 0.1)], "but not below what an option may be"
    assert neighbours(Candidate("jellyfish_plus")) == ()
    between = neighbours(near[0])  # of what is no value to be tried itself: towards those around it
    assert [round(dict(other.options)["caution"], 6) for other in between[:2]] == [0.9375, 1.0125]
    stays = neighbours(Candidate("shared_queue", (("max_late", 0.01),)))
    assert stays == (Candidate("shared_queue", (("max_late", 0.01), ("gathers", True))),), "but for what comes later"


def test_rough_ones_are_quicker_and_otherwise_the_same() -> None:
    candidate = Candidate("shared_queue", (("noise", 0.2), ("margin", 0.0), ("caution", 1.0)))
    quick, whole = make(rough(candidate)), make(candidate)
    assert isinstance(quick, SharedQueue) and isinstance(whole, SharedQueue)
    assert quick.prior == 0.0 < whole.prior and quick.options == whole.options
    assert rough(Candidate("priced")) == Candidate("priced")


def test_a_candidate_is_made_anew_each_time_and_plans() -> None:
    deployment = small_deployment()
    for candidate in (*candidates_for(deployment)[::7], Candidate("symphony", variants=(("app", "middle"),))):
        planner = make(candidate)
        assert planner is not make(candidate)
        check_plan(planner(View(deployment, expected_rates=(100.0,))), deployment)
    with pytest.raises(StrettoError, match="there is no planner 'none'"):
        make(Candidate("none"))


def test_its_name_says_all_of_it() -> None:
    candidate = Candidate("priced", (("caution", 1.05), ("margin", 0.5)))
    assert str(candidate) == "priced (caution 1.05, margin 0.5)"
    assert str(replace(candidate, options=(), variants=(("app", "fast"),))) == "priced (fast)"
    assert str(Candidate("jellyfish_plus")) == "jellyfish_plus"
    assert str(candidate.with_option("margin", 0.2)) == "priced (caution 1.05, margin 0.2)"


def test_what_pays_only_where_a_load_stays_is_left_out_where_it_moves_and_what_pays_there_is_tried() -> None:
    found = of_planner(candidates_for(small_deployment(3)), "shared_queue")
    assert found and all({"rung", "slack_steps"} <= set(dict(candidate.options)) for candidate in found)
    for candidate in found:
        options = dict(candidate.options)
        del options["rung"], options["slack_steps"]
        forms = [dict(form.options) for form in for_a_moving_load(candidate)]
        assert forms == [options, {**options, "leaps": True}, {**options, "prior": 0.0}]
    other = Candidate("slackfit")
    assert for_a_moving_load(other) == (other,)


@pytest.mark.parametrize(
    ("memory", "load_ms", "swaps"),
    [(100, 20, True), (400, 20, False), (100, 150, False)],  # all fit; a load takes longer than any query may
)
def test_schedules_by_windows_are_tried_where_queries_may_wait_for_a_variant(
    memory: int, load_ms: int, swaps: bool
) -> None:
    made = application("a", 2)
    variants = tuple(replace(each, memory_bytes=100, load_ns=load_ms * NS_PER_MS) for each in made.variants)
    pair = tuple(replace(made, name=name, variants=variants) for name in ("a", "b"))
    deployment = Deployment(pair, workers(1, memory_bytes=memory))
    assert has_swaps(deployment) is swaps
    assert bool(of_planner(candidates_for(deployment), "sneakpeek")) is swaps


def test_what_is_tried_covers_queueing_and_shared_queues() -> None:
    entered = candidates_with_clients(ladder(), 40.0)
    assert {dict(each.options)["queueing"] for each in entered if each.planner == "jellyfish"} == {
        0,
        0.25,
        0.5,
        0.75,
        1,
    }
    pools = [dict(each.options)["queueing"] for each in entered if each.planner == "jellyfish_pool"]
    assert pools == [0.5, 0.75, 1.0]
    assert [dict(each.variants)["see"] for each in entered if each.planner == "clockwork_filling"][-1] == "large"
    crowded = candidates_with_clients(ladder(1), 150.0)
    assert "large" not in {dict(each.variants)["see"] for each in crowded if each.planner == "clockwork_filling"}
