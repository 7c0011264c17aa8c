"""Verdicts and libraries for tests; nothing is judged for them."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.core.deployment import Deployment
from stretto.core.verdict import Candidate, Promise, Verdict
from stretto.twin.library import Judgement, Library, Scope
from tests.planners.parts.tasks import small_deployment

PRICED = Candidate("priced", (("caution", 1.05), ("margin", 0.2)))
ALONE = Candidate("symphony_batch_aware", variants=(("app", "fast"),), tail=0.5)


def verdict(*rates: float, candidate: Candidate = PRICED, runner_up: Candidate = ALONE) -> Verdict:
    promise = Promise(0.75, 0.001, 0.002, 0.0001)
    ratios = ((1.25,), (0.8,), (1.0,))
    return Verdict(rates, candidate, promise, runner_up, 0.01, 0.002, 40, stressed=0.7, ratios=ratios)


def library(
    *loads: float,
    deployment: Deployment | None = None,
    figures: Mapping[str, float] | None = None,
    candidate: Candidate = PRICED,
) -> Library:
    """For the small task on three workers unless told."""
    scope = Scope.of(deployment or small_deployment(3))
    judgements = tuple(Judgement(verdict(load, candidate=candidate), figures or {}) for load in loads)
    return Library(scope, judgements, "measured (monday.npz)")
