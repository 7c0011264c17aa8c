"""Classes of queries in trials: how frequent they are, what evidence says of them, and what answers are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.application import Application, Penalty, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.evidence import MOST_SAMPLES, Said
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.verdict import Candidate
from stretto.core.worker import workers
from stretto.sim.loop import RECORD
from stretto.twin.classes import MOST_CELLS, MOST_ROWS, Classes, Labelled, labelled_of
from stretto.twin.live import judge_setting
from stretto.twin.setting import Setting
from stretto.twin.stretch import ArrivalStretch
from tests.twin.made import poisson, requests_at

SKEWED = np.array([0.7, 0.1, 0.15, 0.05])


def evidence(seed: int, shares: NDArray[np.float64], count: int = MOST_SAMPLES, right: float = 0.8) -> Labelled:
    """θ of queries whose class is taken for another one in ten times, and a fifth of the time for none."""
    random = np.random.default_rng(seed)
    labels = random.choice(len(shares), count, p=shares)
    taken_for = np.where(random.random(count) < right, labels, (labels + 1) % len(shares))
    theta = np.full((count, len(shares)), 0.1)
    theta[np.arange(count), taken_for] = np.where(random.random(count) < 0.8, 0.7, 0.3)
    return Labelled(theta / theta.sum(axis=1, keepdims=True), labels)


def told(shares: NDArray[np.float64]) -> tuple[float, ...]:
    """Of 20,000 queries whose classes are so frequent."""
    theta = np.concatenate([evidence(seed, shares, 500).theta for seed in range(2, 42)])
    return tuple((np.bincount(theta.argmax(axis=1), minlength=4) / len(theta)).tolist())


def test_shares_follow_from_what_queries_are_taken_for() -> None:
    known, heard = evidence(1, np.full(4, 0.25)), told(SKEWED)
    as_told = np.array(heard) / sum(heard)
    assert abs(as_told - SKEWED).max() > 0.08, "what is told is not what is there"
    assert abs(known.shares(heard) - SKEWED).max() < 0.06


@pytest.mark.parametrize("seldom", [0.0, 0.08])
def test_a_class_that_evidence_is_seldom_sure_of_is_no_more_frequent_for_that(seldom: float) -> None:
    """It was found to be nine tenths of all queries, because hardly any sample of it is told."""
    random = np.random.default_rng(3)

    def said(labels: NDArray[np.int64]) -> NDArray[np.float64]:
        sure = random.random(len(labels)) < np.where(labels == 7, seldom, 0.9)
        theta = np.full((len(labels), 8), 0.05)
        theta[np.arange(len(labels)), labels] += np.where(sure, 0.6, 0.1)
        return theta / theta.sum(axis=1, keepdims=True)

    labels = random.integers(0, 8, MOST_SAMPLES)
    theta = said(random.integers(0, 8, 2_000))
    heard = tuple((np.bincount(theta.argmax(axis=1), minlength=8) / len(theta)).tolist())
    assert Labelled(said(labels), labels).shares(heard)[7] == pytest.approx(0.125, abs=0.05)


def test_where_nothing_was_told_classes_are_as_among_the_samples() -> None:
    known = evidence(1, SKEWED)
    expected = np.bincount(known.labels, minlength=4) / MOST_SAMPLES
    for nothing in ((), (0.0, 0.0, 0.0, 0.0)):
        assert known.shares(nothing) == pytest.approx(expected)


def test_a_class_that_no_sample_has_is_not_there_whatever_is_told() -> None:
    theta = np.array([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1]])
    known = Labelled(theta, np.array([0, 1]))
    shares = known.shares((0.2, 0.2, 0.6, 0.9))  # the last is none of its classes
    assert shares[2] == 0 and shares.sum() == pytest.approx(1.0) and shares[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("theta", "labels"),
    [
        (np.zeros((0, 2)), np.zeros(0)),
        (np.full((2, 2), 0.5), np.array([0])),
        (np.full((1, 2), 0.5), np.array([2])),
        (np.full((1, 2), 0.5), np.array([-1])),
        (np.full((1, 2), np.nan), np.array([0])),
        (np.full((1, 2), 1.5), np.array([0])),
        (np.full(2, 0.5), np.array([0, 1])),
        (np.full((MOST_ROWS + 1, 2), 0.5), np.zeros(MOST_ROWS + 1)),
        (np.full((1, MOST_CELLS + 1), 0.5), np.zeros(1)),
    ],
)
def test_what_is_no_evidence_of_samples_is_refused(theta: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    with pytest.raises(StrettoError):
        Labelled(theta, labels)


@pytest.mark.parametrize("profiled", [(0.9, 0.6, 0.75, 0.8), (1.0, 0.95, 0.0, 0.5)])
@pytest.mark.parametrize("count", [12, 60, MOST_SAMPLES])
def test_evidence_is_right_as_often_as_it_was_profiled_to_be(profiled: tuple[float, ...], count: int) -> None:
    """Of some samples of a class it is right by chance more often, or less; of few, always or never."""
    known = evidence(1, np.full(4, 0.25), count)
    weighed = Labelled.of(Said(known.theta, known.labels, profiled))
    right = weighed.theta.argmax(axis=1) == weighed.labels
    for number, recall in enumerate(profiled):
        mine = weighed.labels == number
        frequent = (known.labels == number).sum()
        assert weighed.weights[mine].sum() == pytest.approx(frequent), "a class stays as frequent as it was"
        assert weighed.weights[mine & right].sum() == pytest.approx(recall * frequent, abs=0.002 * frequent)
    classes = Classes(deployment(), {0: (weighed, SKEWED)})
    drawn = classes.draw(np.zeros(20_000, np.int32), seed=1)
    answered = weighed.theta.argmax(axis=1)[drawn.samples] == drawn.truth
    assert answered[drawn.truth == 0].mean() == pytest.approx(profiled[0], abs=0.02)


def test_a_class_is_lent_samples_of_others_with_the_classes_in_each_others_place() -> None:
    theta = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
    known = Labelled.of(Said(theta, np.array([0, 0, 1, 1]), (0.7, 0.25)))
    assert known.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert known.theta[2:4].tolist() == [[0.4, 0.5, 0.1], [0.3, 0.1, 0.6]], "of the second class, as if of the first"
    assert known.theta[4:6].tolist() == [[0.2, 0.7, 0.1], [0.3, 0.6, 0.1]]
    assert known.weights == pytest.approx([0.7, 0.7, 0.3, 0.3, 0.25, 0.25, 0.75, 0.75])


def test_samples_stay_as_they_are_where_nothing_was_profiled_or_nobody_can_lend() -> None:
    theta = np.array([[0.9, 0.1], [0.2, 0.8]])
    for recall in ((), (np.nan, 2.0), (0.9, 0.9)):
        assert Labelled.of(Said(theta, np.array([0, 1]), recall)).weights.tolist() == [1.0, 1.0]
    for bad in (np.zeros((0, 2)), np.full(2, 0.5), np.zeros((2, 0))):
        assert labelled_of({"a": Said(bad, np.array([0, 1]))}) == {}


@pytest.mark.parametrize("weights", [np.ones(3), np.array([1.0, 0.0]), np.array([1.0, np.nan]), np.array([1.0, 1e9])])
def test_weights_that_cannot_be_are_refused(weights: NDArray[np.float64]) -> None:
    with pytest.raises(StrettoError, match="counts for"):
        Labelled(np.full((2, 2), 0.5), np.array([0, 1]), weights)


def deployment(load_ms: float = 60.0, memory: int = 100, penalty: Penalty = Penalty.STEP) -> Deployment:
    """One worker that holds one variant, and two applications with evidence."""
    profile = LatencyProfile.linear(1.0, 4.0, 8)
    applications = [
        Application(
            name,
            150 * NS_PER_MS,
            (Variant("v", 0.9, (profile,), 100, 0, round(load_ms * NS_PER_MS), (0.95, 0.9, 0.85, 0.9)),),
            penalty,
            classes=4,
            evidence_accuracy=0.8,
        )
        for name in ("a", "b")
    ]
    return Deployment(tuple(applications), workers(1, memory_bytes=memory))


def test_a_draw_has_the_shares_and_shows_what_evidence_said_of_that_class() -> None:
    known = evidence(1, np.full(4, 0.25))
    classes = Classes.of(deployment(), {"a": known}, {"a": told(SKEWED)})
    assert classes is not None
    applications = np.tile(np.array([0, 1], np.int32), 10_000)
    drawn, again = classes.draw(applications, 5), classes.draw(applications, 5)
    assert np.array_equal(drawn.truth, again.truth)
    theta = drawn.theta()
    assert (drawn.truth[1::2] == -1).all() and np.isnan(theta[1::2]).all()
    assert abs(np.bincount(drawn.truth[::2], minlength=4) / 10_000 - SKEWED).max() < 0.06
    for label in range(4):
        of_samples = {tuple(row) for row in known.theta[known.labels == label]}
        assert {tuple(row) for row in theta[drawn.truth == label]} <= of_samples


def test_an_application_without_samples_may_have_more_classes() -> None:
    """It ended the judge."""
    one, other = deployment().applications
    wide = replace(other, classes=6, variants=(replace(other.variants[0], recall=(0.5,) * 6),))
    there = Deployment((one, wide), workers(1))
    classes = Classes.of(there, {"a": evidence(1, np.full(4, 0.25))}, {})
    assert classes is not None
    queries = np.zeros(10, dtype=RECORD)
    queries["application"], queries["variant"], queries["outcome"] = 1, 1, Outcome.ON_TIME
    assert classes.draw(queries["application"], 1).correct(queries, 0) == pytest.approx(0.9), "of unknown class"


def test_classes_in_doubt_are_those_of_other_samples() -> None:
    classes = Classes.of(deployment(), {"a": evidence(1, np.full(4, 0.25), 100)}, {"a": told(SKEWED)})
    assert classes is not None
    before = classes.known[0][1]
    shares = np.array([classes.resampled(seed).known[0][1] for seed in range(40)])
    assert np.array_equal(shares[3], classes.resampled(3).known[0][1])
    assert 0.01 < shares[:, 0].std() < 0.15 and abs(shares.mean(axis=0) - before).max() < 0.05


def test_without_evidence_of_its_classes_there_are_none() -> None:
    known = evidence(1, np.full(3, 1 / 3), 100)  # of other classes than the applications have
    assert Classes.of(deployment(), {"a": known}, {}) is None and Classes.of(deployment(), {}, {}) is None


def test_answers_count_by_the_true_class() -> None:
    known = Labelled(np.array([[0.9, 0.1, 0.0, 0.0], [0.2, 0.8, 0.0, 0.0]]), np.array([0, 0]))
    classes = Classes.of(deployment(), {"a": known}, {})
    assert classes is not None
    queries = np.zeros(400, dtype=RECORD)
    drawn = classes.draw(queries["application"], 1)
    theta = drawn.theta()
    queries["outcome"], queries["variant"] = Outcome.ON_TIME, 0
    queries["arrival_ns"] = np.arange(400)
    assert drawn.correct(queries, 0) == pytest.approx(0.95), "all are of class 0"
    queries["variant"] = -1
    right = (theta[:, 0] > 0.5).mean()
    assert 0.3 < right < 0.7 and drawn.correct(queries, 0) == pytest.approx(right), "evidence, as it is right or wrong"
    queries["outcome"][200:] = Outcome.LATE
    assert drawn.correct(queries, 200) == 0
    assert drawn.correct(queries, 100) == pytest.approx((theta[100:200, 0] > 0.5).sum() / 300)
    queries["variant"], queries["deadline_ns"], queries["end_ns"] = 0, queries["arrival_ns"] + 10, 0
    queries["end_ns"][200:] = queries["deadline_ns"][200:] + 4
    linear = replace(classes, deployment=deployment(penalty=Penalty.LINEAR)).draw(queries["application"], 1)
    assert drawn.utility(queries, 0) == pytest.approx(0.95 / 2) == drawn.correct(queries, 0)
    assert linear.utility(queries, 0) == pytest.approx(0.95 * (1 + 0.6) / 2), "late by 4 of 10"
    queries["application"], queries["outcome"], queries["variant"] = 1, Outcome.ON_TIME, -1
    elsewhere = classes.draw(queries["application"], 1)
    assert elsewhere.correct(queries, 0) == pytest.approx(0.8), "as profiled, where no class is known"


def test_data_aware_plans_are_judged_wherever_there_is_evidence() -> None:
    """Everything fits into memory, and each variant knows one half of the classes: only θ tells whom to ask."""
    profile, recalls = LatencyProfile.linear(1.0, 4.0, 8), ((0.95, 0.95, 0.3, 0.3), (0.3, 0.3, 0.95, 0.95))
    variants = tuple(Variant(f"v{n}", 0.625, (profile,), recall=recall) for n, recall in enumerate(recalls))
    application = Application("a", 150 * NS_PER_MS, variants, classes=4, evidence_accuracy=0.8)
    there, span_s = Deployment((application,), workers(2)), 20
    requests = requests_at(poisson(40.0, span_s, 1), slack_ns=150 * NS_PER_MS)
    arrivals = {"a": ArrivalStretch.of(requests, span_s * 10**9, (0.25,) * 4)}
    setting = Setting(arrivals, evidence={"a": evidence(1, np.full(4, 0.25), right=0.9)})
    tried = (Candidate("priced"), Candidate("priced", (("data_aware", True),)))
    verdict = judge_setting(there, setting, (40.0,), candidates=tried[:1])
    assert verdict.candidate == tried[1], "the twin of the best one is tried beside it"
    assert verdict.promise.correct > 0.8


@pytest.mark.parametrize(("load_ms", "chosen"), [(60.0, "sneakpeek"), (0.5, "priced")])
def test_evidence_answers_where_a_swap_is_dear(load_ms: float, chosen: str) -> None:
    """Two applications in turn on a worker that holds one of them: a swap takes most of the deadline, or nothing."""
    there, span_s = deployment(load_ms), 60
    arrivals = {
        name: ArrivalStretch.of(
            requests_at(poisson(8.0, span_s, seed), slack_ns=150 * NS_PER_MS), span_s * 10**9, (0.2, 0.2, 0.2, 0.2)
        )
        for seed, name in enumerate(("a", "b"))
    }
    known = evidence(1, np.full(4, 0.25), right=0.85)
    setting = Setting(arrivals, evidence={"a": known, "b": known})
    tried = (Candidate("sneakpeek"), Candidate("priced"))
    verdict = judge_setting(there, setting, (8.0, 8.0), candidates=tried)
    assert verdict.candidate.planner == chosen and verdict.promise.correct > 0.75
