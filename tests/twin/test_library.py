"""Libraries of verdicts: what they hold for, by load per worker, and what differs where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.verdict import Candidate
from stretto.core.worker import workers
from stretto.planners.judged.ledger import LEAST_RATE, RUNG
from stretto.twin.library import MOST_VERDICTS, Judgement, Library, Scope, rungs_of
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import library, verdict
from tests.twin.settings import two_kinds

FIGURES = {"rows of app": 1.0}


def changed(change: Callable[[Application], Application], **more: object) -> Deployment:
    base = small_deployment(3)
    return replace(base, applications=(change(base.applications[0]),), **more)  # type: ignore[arg-type]


def test_they_hold_for_the_same_deployment_as_they_are() -> None:
    made = library(100.0, 200.0, figures=FIGURES)
    assert made.judgements_for(small_deployment(3)) == made.judgements
    assert Scope.of(small_deployment(3)).digest() == made.scope.digest()


def test_another_number_of_workers_is_taken_by_load_per_worker() -> None:
    here = library(100.0, figures=FIGURES).judgements_for(small_deployment(6))
    assert [judgement.verdict.rates for judgement in here] == [(200.0,)]
    assert not here[0].figures, "what was measured was measured on others"
    assert here[0].verdict.candidate == verdict(1.0).candidate


def test_an_application_of_several_is_taken_where_that_is_allowed() -> None:
    base = small_deployment(3)
    other = Application("other", base.applications[0].slo_ns, base.applications[0].variants)
    both = Deployment((other, base.applications[0]), base.workers, base.quantile)
    made = library(100.0)
    assert made.judgements_for(both, partly=True)[0].verdict.rates == (0.0, 100.0)
    with pytest.raises(StrettoError, match="judged for application app, not other, app; judge anew with stretto tune"):
        made.judgements_for(both)


def test_of_fewer_applications_what_was_judged_for_them_alone_is_left() -> None:
    deployment = two_kinds()
    first, second = (application.name for application in deployment.applications)
    count = len(deployment.applications[0].variants)
    ratios = tuple((1.0 + number, 2.0 + number) for number in range(len(deployment.variants)))
    alone = Candidate("symphony_batch_aware", variants=((first, "a"), (second, "b")))
    made = replace(verdict(100.0, LEAST_RATE, candidate=alone), ratios=ratios)
    both = Library(Scope.of(deployment), (Judgement(made, FIGURES), Judgement(verdict(100.0, 20.0))))
    (left,) = both.left_with([first]).judgements
    assert left.verdict.rates == (100.0,) and left.figures == FIGURES
    assert left.verdict.ratios == ratios[:count]
    assert left.verdict.candidate.variants == ((first, "a"),)
    assert not both.left_with([second]).judgements and not both.left_with(["else"]).judgements
    assert [each.verdict.rates for each in both.left_with([first, second]).judgements] == [(100.0, 1.0), (100.0, 20.0)]


def test_of_variants_that_were_not_judged_latencies_are_as_of_others_of_their_kind() -> None:
    base = small_deployment(3)
    other = Application("other", base.applications[0].slo_ns, base.applications[0].variants[:1])
    ratios = tuple((2.0 + number,) for number in range(len(base.variants)))
    made = Library(Scope.of(base), (Judgement(replace(verdict(100.0), ratios=ratios)),))
    both = Deployment((other, base.applications[0]), base.workers, base.quantile)
    assert made.judgements_for(both, partly=True)[0].verdict.ratios == ((median(row[0] for row in ratios),), *ratios)


def test_rates_follow_the_order_of_the_applications() -> None:
    deployment = two_kinds()
    made = Library(Scope.of(deployment), (Judgement(verdict(100.0, 20.0), FIGURES),))
    turned = replace(deployment, applications=deployment.applications[::-1])
    assert made.judgements_for(turned)[0] == Judgement(verdict(20.0, 100.0), FIGURES)


def test_latencies_go_with_variants_and_kinds_and_not_with_their_places() -> None:
    """A server whose workers are named in another order has the same file of verdicts."""
    deployment = two_kinds()
    kinds, count = deployment.kinds, len(deployment.variants)
    ratios = tuple(tuple(10.0 * number + place for place in range(len(kinds))) for number in range(count))
    made = Library(Scope.of(deployment), (Judgement(replace(verdict(100.0, 20.0), ratios=ratios), FIGURES),))
    turned = replace(deployment, applications=deployment.applications[::-1], workers=deployment.workers[::-1])
    assert turned.kinds == kinds[::-1] != kinds
    (judgement,) = made.judgements_for(turned)
    for number in range(count):
        label = deployment.variant_label(number)
        there = next(place for place in range(count) if turned.variant_label(place) == label)
        assert judgement.verdict.ratios[there] == ratios[number][::-1], label
    assert made.judgements_for(deployment) == made.judgements


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        (changed(lambda app: replace(app, name="else")), "for application app, not else"),
        (changed(lambda app: replace(app, slo_ns=30_000_000)), "for an SLO of 60 ms of app, not 30 ms"),
        (changed(lambda app: replace(app, variants=app.variants[1:])), "for the variants fast, middle, slow, useless"),
        (
            changed(lambda app: replace(app, variants=(replace(app.variants[0], accuracy=0.61), *app.variants[1:]))),
            "for an accuracy of 0.6 of app/fast, not 0.61",
        ),
        (
            changed(
                lambda app: replace(
                    app,
                    variants=(replace(app.variants[0], profiles=(LatencyProfile.linear(3, 6, 8),)), *app.variants[1:]),
                )
            ),
            "for other latencies of app/fast, not those that its profile has now",
        ),
        (changed(lambda app: app, quantile=Quantile.MEAN), "for latencies at p95, not at mean"),
        (changed(lambda app: app, workers=workers(3, memory_bytes=10**9)), "for workers with other memory"),
        (two_kinds(), "for application app"),
    ],
)
def test_what_differs_is_said(deployment: Deployment, words: str) -> None:
    with pytest.raises(StrettoError, match=f"^plans: these plans were judged {words}"):
        library(100.0).judgements_for(deployment)


def test_a_fleet_of_another_mix_is_refused() -> None:
    deployment = two_kinds()
    made = Library(Scope.of(deployment), (Judgement(verdict(100.0, 20.0)),))
    twice = replace(deployment, workers=workers(4, "fast") + workers(4, "slow"))
    assert made.judgements_for(twice)[0].verdict.rates == (200.0, 40.0)
    uneven = replace(deployment, workers=workers(4, "fast") + workers(2, "slow"))
    with pytest.raises(StrettoError, match="judged for workers 2 × fast \\+ 2 × slow, not 4 × fast \\+ 2 × slow"):
        made.judgements_for(uneven)


def test_a_load_has_one_verdict_and_there_is_a_bound() -> None:
    made = library(100.0, 200.0)
    newer = Judgement(verdict(101.0), FIGURES)
    assert rungs_of((100.0,)) == rungs_of((101.0,))
    assert made.with_judgement(newer).judgements == (made.judgements[1], newer)
    for step in range(MOST_VERDICTS + 5):
        made = made.with_judgement(Judgement(verdict(100.0 * RUNG**step)))
    assert len(made.judgements) == MOST_VERDICTS
    assert made.judgements[-1].verdict.rates == (100.0 * RUNG ** (MOST_VERDICTS + 4),)
