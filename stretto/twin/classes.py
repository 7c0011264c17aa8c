"""Classes of queries, and what evidence says of them: drawn for trials, so that planners that look at it can be judged.

What evidence says of labelled samples is known before anything is served. While serving nobody tells a query's class,
only what evidence takes it for; from that follows how frequent classes are. A trial draws classes so, and for each
query what evidence said of some sample of its class. An answer then counts by its true class, whoever gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.twin.stretch import MOST_CLASSES

MOST_SAMPLES = 1024  # of an application
SURE = 0.5  # a class is told where its posterior is above, as a server does (live/witness.py)
ROUNDS = 100
SELDOM = 1e-3  # no sample was told to be this class, and some query was

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labelled:
    """What evidence says of an application's labelled samples: `theta` [sample, class], and their true classes."""

    theta: Floats
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        theta, labels = np.array(self.theta, np.float64), np.array(self.labels, np.int64)
        if theta.ndim != 2 or labels.shape != theta.shape[:1] or not 1 <= len(labels) <= MOST_SAMPLES:
            raise StrettoError(f"evidence is judged by 1 to {MOST_SAMPLES} samples, each with its class")
        if not 1 <= theta.shape[1] <= MOST_CLASSES or not ((labels >= 0) & (labels < theta.shape[1])).all():
            raise StrettoError(f"the classes of samples are numbers below {theta.shape[1]}, of {MOST_CLASSES} at most")
        if not ((theta >= 0) & (theta <= 1)).all():
            raise StrettoError("what evidence says are probabilities")
        for name, array in (("theta", theta), ("labels", labels)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def shares(self, told: Sequence[float]) -> Floats:
        """How frequent each class is where so many queries (shares, by class) were told to be of each; classes as
        frequent as among the samples where none was. By expectation and maximisation: samples of a class are told to be
        of others too, and of some nothing is told.
        """
        classes = self.theta.shape[1]
        count = np.bincount(self.labels, minlength=classes)
        heard = np.zeros(classes)
        heard[: len(told)] = told[:classes]
        if heard.sum() <= 0:
            return count / count.sum()
        sure = self.theta.max(axis=1) > SURE
        told_as = np.zeros((classes, classes))  # [told, true]
        np.add.at(told_as, (self.theta[sure].argmax(axis=1), self.labels[sure]), 1.0)
        is_told = told_as.sum(axis=0)
        chance = np.where(count > 0, (told_as + SELDOM) / (is_told + classes * SELDOM), 0.0)
        shares = (count > 0) / (count > 0).sum()
        for _ in range(ROUNDS):
            shares = shares * (chance.T @ (heard / (chance @ shares)))
            shares /= shares.sum()
        shares /= np.maximum(is_told / np.maximum(count, 1), SELDOM)  # those that are seldom told are there as well
        return np.asarray(shares / shares.sum())


@dataclass(frozen=True, eq=False)
class Classes:
    """Of the applications of a deployment, by number; those without samples have no evidence."""

    deployment: Deployment
    known: Mapping[int, tuple[Labelled, Floats]]  # with the share of each class

    @staticmethod
    def of(
        deployment: Deployment, evidence: Mapping[str, Labelled], told: Mapping[str, Sequence[float]]
    ) -> Classes | None:
        """None where no application has evidence of its classes."""
        known = {}
        for number, application in enumerate(deployment.applications):
            labelled = evidence.get(application.name)
            if labelled is not None and labelled.theta.shape[1] == application.classes:
                known[number] = (labelled, labelled.shares(told.get(application.name, ())))
        return Classes(deployment, known) if known else None

    def draw(self, applications: NDArray[np.int32], seed: int) -> Classified:
        """For queries of these applications."""
        widest = max(labelled.theta.shape[1] for labelled, _ in self.known.values())
        theta, truth = np.full((len(applications), widest), np.nan), np.full(len(applications), -1, np.int64)
        random = np.random.default_rng(SeedSequence([seed, 0xC1A5]))
        for number, (labelled, shares) in self.known.items():
            mine = np.flatnonzero(applications == number)
            count = np.bincount(labelled.labels, minlength=len(shares))
            weights = shares[labelled.labels] / count[labelled.labels]
            samples = random.choice(len(weights), len(mine), p=weights / weights.sum())
            theta[mine, : len(shares)] = labelled.theta[samples]
            truth[mine] = labelled.labels[samples]
        return Classified(self.deployment, theta, truth)


@dataclass(frozen=True, eq=False)
class Classified:
    """Queries in the order of their arrival: what a planner is shown, and the true class, -1 where it is not known."""

    deployment: Deployment
    theta: Floats  # NaN: nothing is known, or its application has fewer classes
    truth: NDArray[np.int64]

    def correct(self, queries: NDArray[np.void], from_ns: int) -> float:
        """The share of the queries that came from then on, as a simulation recorded them, answered right on time."""
        counted = queries["arrival_ns"] >= from_ns
        answered = np.flatnonzero(counted & (queries["outcome"] == Outcome.ON_TIME))
        variant, truth = queries["variant"][answered], self.truth[answered]
        by_evidence = np.array([each.evidence_accuracy or 0.0 for each in self.deployment.applications])
        right = np.where(
            variant >= 0,
            self._right()[variant, truth],
            by_evidence[queries["application"][answered]],
        )
        told = (variant < 0) & (truth >= 0)
        right[told] = np.nanargmax(self.theta[answered[told]], axis=1) == truth[told]
        return float(right.sum() / max(counted.sum(), 1))

    def _right(self) -> Floats:
        """[variant, class] the chance of a right answer; in the last column that of a query of unknown class."""
        variants = self.deployment.variants
        chance = np.repeat([[variant.accuracy] for variant in variants], self.theta.shape[1] + 1, axis=1)
        for row, variant in zip(chance, variants, strict=True):
            row[: len(variant.recall)] = variant.recall[: len(row) - 1]
        return chance
