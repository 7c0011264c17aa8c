"""Classes of queries, and what evidence says of them: drawn for trials, so that planners that look at it can be judged.

What evidence says of labelled samples is known before anything is served. While serving nobody tells a query's class,
only what evidence takes it for; from that follows how frequent classes are. A trial draws classes so, and for each
query what evidence said of some sample of its class. An answer then counts by its true class, whoever gives it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.evidence import MOST_NUMBERS, MOST_SAMPLES, Said, likeliest
from stretto.core.lateness import kept_shares
from stretto.core.outcome import Outcome

ROUNDS = 100
SELDOM = 0.05  # of a sample, that each class is taken for each other one: some query may be
BELIEF = 0.02  # of all queries, that count as if they were like the samples
LEAST_RECALL = 0.001  # and at most so little below one: a class has both sorts of answers, if seldom
LENT = 4  # samples of other classes, to a class that has none of a sort
MOST_ROWS = MOST_SAMPLES * (1 + LENT)
MOST_CELLS = MOST_NUMBERS * (1 + LENT)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labelled:
    """What evidence says of an application's labelled samples: `theta` [sample, class], their true classes, and what
    each of them counts for, in samples (nothing given: one).
    """

    theta: Floats
    labels: NDArray[np.int64]
    weights: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        theta, labels = np.array(self.theta, np.float64), np.array(self.labels, np.int64)
        weights = np.array(self.weights, np.float64) if len(self.weights) else np.ones(len(labels))
        if theta.ndim != 2 or labels.shape != theta.shape[:1] or not 1 <= len(labels) <= MOST_ROWS:
            raise StrettoError(f"evidence is judged by 1 to {MOST_ROWS} samples, each with its class")
        if not 1 <= theta.size <= MOST_CELLS or not ((labels >= 0) & (labels < theta.shape[1])).all():
            raise StrettoError(f"the classes of samples are numbers below {theta.shape[1]}, and there is not too much")
        if not ((theta >= 0) & (theta <= 1)).all():
            raise StrettoError("what evidence says are probabilities")
        if weights.shape != labels.shape or not ((weights > 0) & (weights <= MOST_SAMPLES)).all():
            raise StrettoError(f"a sample counts for more than none, and for {MOST_SAMPLES} at most")
        for name, array in (("theta", theta), ("labels", labels), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @staticmethod
    def of(said: Said) -> Labelled:
        """With evidence right of each class as often as was profiled, on more than these samples: of a class there may
        be ten, and they tell it to a tenth. Classes stay as frequent as they are. One whose samples are all right, or
        all wrong, is lent some of the other sort.
        """
        known = Labelled(said.theta, said.labels)
        right = likeliest(known.theta) == known.labels
        theta, labels, weights = [], [], []
        for number in np.unique(known.labels).tolist():
            is_of_class = known.labels == number
            sorts = [known._of_sort(number, is_of_class, right == is_right) for is_right in (True, False)]
            recall = said.recall[number] if number < len(said.recall) else math.nan
            if 0 <= recall <= 1 and all(len(rows) for rows in sorts):
                recall = min(max(recall, LEAST_RECALL), 1 - LEAST_RECALL)
                parts = [(rows, share) for rows, share in zip(sorts, (recall, 1 - recall), strict=True)]
            else:
                parts = [(known.theta[is_of_class], 1.0)]
            for rows, share in parts:
                theta.append(rows)
                labels.append(np.full(len(rows), number))
                weights.append(np.full(len(rows), is_of_class.sum() * share / len(rows)))
        return Labelled(np.concatenate(theta), np.concatenate(labels), np.concatenate(weights))

    def _of_sort(self, number: int, is_of_class: NDArray[np.bool_], is_of_sort: NDArray[np.bool_]) -> Floats:
        """θ of a class where evidence is right, or where it is wrong; of some other classes if it has none, with the
        two classes in each other's place.
        """
        rows = np.flatnonzero(is_of_class & is_of_sort)
        if len(rows):
            return self.theta[rows]
        others = np.flatnonzero(is_of_sort)
        lent = others[np.linspace(0, len(others) - 1, min(LENT, len(others))).astype(np.int64)]
        theta, owners, places = self.theta[lent], self.labels[lent], np.arange(len(lent))
        theta[places, number], theta[places, owners] = self.theta[lent, owners], self.theta[lent, number]
        return theta

    def shares(self, told: Sequence[float]) -> Floats:
        """How frequent each class is where so many queries (shares, by class) were told to be of each; classes as
        frequent as among the samples where none was. By expectation and maximisation: samples of a class are taken for
        others too. Queries that nobody told of are taken to be like the others.
        """
        classes = self.theta.shape[1]
        count = np.bincount(self.labels, self.weights, minlength=classes)
        usual = count / count.sum()
        taken_for = likeliest(self.theta)
        there, named = np.flatnonzero(count), np.union1d(taken_for, np.flatnonzero(count))
        heard = np.array([told[place] if place < len(told) else 0.0 for place in named.tolist()])
        if heard.sum() <= 0:
            return usual
        heard /= heard.sum()
        taken = np.full((len(named), len(there)), SELDOM)  # [taken for, true]
        np.add.at(taken, (np.searchsorted(named, taken_for), np.searchsorted(there, self.labels)), self.weights)
        chance = taken / taken.sum(axis=0)
        shares = usual[there]
        for _ in range(ROUNDS):
            likely = shares * (chance.T @ (heard / (chance @ shares)))
            shares = (1 - BELIEF) * likely / likely.sum() + BELIEF * usual[there]
        whole = np.zeros(classes)
        whole[there] = shares
        return whole


def labelled_of(said: Mapping[str, Said]) -> dict[str, Labelled]:
    """By application; those of no sample are left out."""
    known = {}
    for name, samples in said.items():
        with contextlib.suppress(StrettoError):
            known[name] = Labelled.of(samples)
    return known


@dataclass(frozen=True, eq=False)
class Classes:
    """Of the applications of a deployment, by number; those without samples have no evidence."""

    deployment: Deployment
    known: Mapping[int, tuple[Labelled, Floats]]  # with the share of each class
    told: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @staticmethod
    def of(
        deployment: Deployment, evidence: Mapping[str, Labelled], told: Mapping[str, Sequence[float]]
    ) -> Classes | None:
        """None where no application has evidence of its classes."""
        known, heard = {}, {}
        for number, application in enumerate(deployment.applications):
            labelled = evidence.get(application.name)
            if labelled is not None and labelled.theta.shape[1] == application.classes:
                heard[number] = told.get(application.name, ())
                known[number] = (labelled, labelled.shares(heard[number]))
        return Classes(deployment, known, heard) if known else None

    def resampled(self, seed: int) -> Classes:
        """As they may be as well: some hundred samples tell how often evidence is right to a point or two."""
        random = np.random.default_rng(SeedSequence([seed, 0xB007]))
        known = {}
        for number, (labelled, _) in self.known.items():
            some = random.integers(0, len(labelled.labels), len(labelled.labels))
            again = Labelled(labelled.theta[some], labelled.labels[some], labelled.weights[some])
            known[number] = (again, again.shares(self.told.get(number, ())))
        return replace(self, known=known)

    def draw(self, applications: NDArray[np.int32], seed: int) -> Classified:
        """For queries of these applications."""
        drawn = np.full(len(applications), -1, np.int64)
        truth = drawn.copy()
        random = np.random.default_rng(SeedSequence([seed, 0xC1A5]))
        for number, (labelled, shares) in self.known.items():
            mine = np.flatnonzero(applications == number)
            count = np.bincount(labelled.labels, labelled.weights, minlength=len(shares))
            weights = labelled.weights * shares[labelled.labels] / count[labelled.labels]
            samples = random.choice(len(weights), len(mine), p=weights / weights.sum())
            drawn[mine], truth[mine] = samples, labelled.labels[samples]
        return Classified(self, applications, drawn, truth)


@dataclass(frozen=True, eq=False)
class Classified:
    """Queries in the order of their arrival, by sample of their application and true class; -1: nothing is known."""

    classes: Classes
    applications: NDArray[np.int32]
    samples: NDArray[np.int64]
    truth: NDArray[np.int64]

    def told(self) -> NDArray[np.int64]:
        """The class that each query is told to be of; -1 where nothing is known."""
        told = np.full(len(self.truth), -1, np.int64)
        for number, (labelled, _) in self.classes.known.items():
            mine = self.applications == number
            told[mine] = likeliest(labelled.theta)[self.samples[mine]]
        return told

    def theta(self) -> Floats:
        """What a planner is shown; NaN where nothing is known, or an application has fewer classes."""
        known = self.classes.known
        theta = np.full((len(self.truth), max(each.theta.shape[1] for each, _ in known.values())), np.nan)
        for number, (labelled, shares) in known.items():
            mine = np.flatnonzero(self.applications == number)
            theta[mine, : len(shares)] = labelled.theta[self.samples[mine]]
        return theta

    def correct(self, queries: NDArray[np.void], from_ns: int, application: int | None = None) -> float:
        """The share of the queries that came from then on, as a simulation recorded them, answered right on time; of
        one application, or of all.
        """
        asked, rows, right = self._answered(queries, from_ns, application)
        return float(right[rows["outcome"] == Outcome.ON_TIME].sum() / max(asked, 1))

    def utility(self, queries: NDArray[np.void], from_ns: int, application: int | None = None) -> float:
        """The mean worth of the same queries: a right answer is worth what its lateness leaves."""
        asked, rows, right = self._answered(queries, from_ns, application)
        penalties = np.array([int(each.penalty) for each in self.classes.deployment.applications])[rows["application"]]
        kept = kept_shares(penalties, rows["end_ns"], rows["deadline_ns"], rows["arrival_ns"])
        return float((right * kept).sum() / max(asked, 1))

    def _answered(
        self, queries: NDArray[np.void], from_ns: int, application: int | None
    ) -> tuple[int, NDArray[np.void], Floats]:
        """How many queries came from then on, those of them that were answered, and each one's chance to be right."""
        counted = queries["arrival_ns"] >= from_ns
        if application is not None:
            counted &= queries["application"] == application
        is_answer = (queries["outcome"] == Outcome.ON_TIME) | (queries["outcome"] == Outcome.LATE)
        answered = np.flatnonzero(counted & is_answer)
        rows, truth = queries[answered], self.truth[answered]
        variant = rows["variant"]
        applications = self.classes.deployment.applications
        by_evidence = np.array([each.evidence_accuracy or 0.0 for each in applications])
        right = np.where(variant >= 0, self._right()[variant, truth], by_evidence[rows["application"]])
        for number, (labelled, _) in self.classes.known.items():
            told = np.flatnonzero((variant < 0) & (rows["application"] == number))
            right[told] = likeliest(labelled.theta)[self.samples[answered[told]]] == truth[told]
        return int(counted.sum()), rows, right

    def _right(self) -> Floats:
        """[variant, class] the chance of a right answer; in the last column that of a query of unknown class."""
        variants = self.classes.deployment.variants
        widest = max(len(shares) for _, shares in self.classes.known.values())
        chance = np.repeat([[variant.accuracy] for variant in variants], widest + 1, axis=1)
        for row, variant in zip(chance, variants, strict=True):
            known = variant.recall[:widest]
            row[: len(known)] = known
        return chance
