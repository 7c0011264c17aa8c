"""[application.evidence] of a scenario: a made-up model that tells a query's class, right as often as is stated.

As SneakPeek's section 6.3.2 has it: for a query's true class it names that class with the stated accuracy, and any of
the others alike, k times over. Those are the observations that θ follows from, under Jeffreys' prior.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stretto.config.fields import Fields
from stretto.core.application import Application
from stretto.core.deployment import Deployment, with_evidence
from stretto.core.evidence import MOST_NUMBERS, MOST_SAMPLES, jeffreys, likeliest, posterior_mean
from stretto.twin.classes import Labelled

MAX_VOTES = 1000


def read_evidence(top: Fields, deployment: Deployment) -> tuple[Deployment, dict[str, Labelled]]:
    """The deployment with what evidence says of its applications' queries, and samples of that by application."""
    known: dict[str, Labelled] = {}
    applications = list(deployment.applications)
    for fields in top.parts("application") if top.has("application") else ():
        evidence = fields.part("evidence")
        if evidence is None:
            continue
        name, count = fields.text("name"), fields.optional_integer("count", 1, len(applications))
        names = {name} if count is None else {f"{name}-{number}" for number in range(count)}
        for place, application in enumerate(applications):
            if application.name in names:
                applications[place], known[application.name] = _with_evidence(evidence, application, place)
        evidence.done(("class_shares",))
    told = Deployment(tuple(applications), deployment.workers, deployment.quantile)
    return with_evidence(told, {name: labelled.theta for name, labelled in known.items()}), known


def _with_evidence(fields: Fields, application: Application, seed: int) -> tuple[Application, Labelled]:
    classes = len(application.variants[0].recall)
    if classes < 2 or {len(variant.recall) for variant in application.variants} != {classes}:
        fields.fail("evidence tells classes; give every variant of the application a recall for each class")
    accuracy = fields.number("accuracy", 0, 1)
    votes = fields.integer("k", 1, MAX_VOTES, 5)
    shares = fields.numbers("class_shares", 0, 1e12) if fields.has("class_shares") else (1.0,) * classes
    if len(shares) != classes or sum(shares) <= 0:
        fields.fail(f"class_shares has {len(shares)} numbers for {classes} classes; give one for each", "class_shares")
    labelled = made_up(np.array(shares) / sum(shares), accuracy, votes, seed)
    right = float((likeliest(labelled.theta) == labelled.labels).mean())
    may_answer = fields.flag("answers", True)
    told = replace(application, classes=classes, evidence_accuracy=right if may_answer else None, has_evidence=True)
    return told, labelled


def made_up(shares: np.ndarray, accuracy: float, votes: int, seed: int) -> Labelled:
    """θ of samples whose classes are as frequent as stated."""
    classes = len(shares)
    count = min(MOST_SAMPLES, max(1, MOST_NUMBERS // classes))
    random = np.random.default_rng([seed, 0x5EE])
    labels = np.searchsorted(np.cumsum(shares), (np.arange(count) + 0.5) / count).clip(0, classes - 1)
    is_right = random.random((count, votes)) < accuracy
    others = (labels[:, None] + random.integers(1, classes, (count, votes))) % classes
    named = np.where(is_right, labels[:, None], others)
    counts = np.zeros((count, classes))
    np.add.at(counts, (np.arange(count)[:, None], named), 1)
    return Labelled(posterior_mean(counts, jeffreys(classes)), labels)
