"""Small windows, and a plain enumeration of every schedule to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import numpy as np

from stretto.core.application import Application, Penalty, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import WaitingQuery
from stretto.core.worker import Worker
from stretto.planners.sneakpeek.catalogue import catalogue_of
from stretto.planners.sneakpeek.schedule import evidence_worth, problem_of
from stretto.planners.sneakpeek.window import Window, window_of

MEMORY = 1000


def variant(
    name: str,
    accuracy: float,
    alpha_ms: float,
    beta_ms: float,
    *,
    load_ms: float = 0.0,
    recall: Sequence[float] = (),
    max_batch: int = 16,
    kinds: Sequence[tuple[str, float]] = (("gpu", 1.0),),
) -> Variant:
    """One that fills a worker's memory; `kinds` come with how much slower they are."""
    profiles = tuple(
        LatencyProfile.linear(alpha_ms * slower, beta_ms * slower, max_batch, kind) for kind, slower in kinds
    )
    load_ns = int(load_ms * NS_PER_MS)
    return Variant(name, accuracy, profiles, memory_bytes=MEMORY, load_ns=load_ns, recall=tuple(recall))


def application(
    name: str, *variants: Variant, penalty: Penalty = Penalty.SIGMOID, evidence: float | None = None
) -> Application:
    classes = len(variants[0].recall)
    return Application(name, 100 * NS_PER_MS, variants, penalty, classes, evidence)


def deployment(applications: Sequence[Application], workers: Sequence[str] = ("gpu",)) -> Deployment:
    """Workers by kind, which hold one variant and none at the start."""
    return Deployment(
        tuple(applications), tuple(Worker(f"w{number}", kind, MEMORY, ()) for number, kind in enumerate(workers))
    )


def query(
    ticket: int,
    owner: int,
    deadline_ms: float,
    *,
    length_ms: float = 100.0,
    theta: Sequence[float] | None = None,
    demand: int = -1,
) -> WaitingQuery:
    """The deadline is counted from the moment of planning, zero."""
    deadline_ns = int(deadline_ms * NS_PER_MS)
    arrival_ns = deadline_ns - int(length_ms * NS_PER_MS)
    known = None if theta is None else tuple(theta)
    return WaitingQuery(ticket, owner, arrival_ns, deadline_ns, -1, -1, 0, demand, ticket, known)


def window(served: Deployment, queries: Sequence[WaitingQuery], **more: Any) -> Window:
    return window_of(catalogue_of(served), 0, queries, **more)


def problem(of: Window, groups: Sequence[Sequence[int]], caution: float = 0.0):  # type: ignore[no-untyped-def]
    """The groups of a window as the compiled functions want them."""
    return problem_of(of, [np.array(group) for group in groups], evidence_worth(of, caution), caution)


def left_over(penalty: Penalty, end_ns: float, deadline_ns: float, length_ns: float) -> float:
    """1 − γ as the paper has it, with min for max."""
    if end_ns <= deadline_ns:
        return 1.0
    x = (end_ns - deadline_ns) / length_ns
    if penalty is Penalty.STEP:
        return 0.0
    if penalty is Penalty.LINEAR:
        return 1.0 - min(1.0, x)
    return 0.0 if x >= 1 else 1.0 - 1.0 / (1.0 + (x / (1.0 - x)) ** -3)


class Enumeration:
    """Every way to give groups to workers, variants, places and batches, or to their evidence."""

    def __init__(
        self, served: Deployment, queries: Sequence[WaitingQuery], groups: Sequence[Sequence[int]], of: Window
    ):
        self.served, self.queries, self.groups, self.of = served, queries, groups, of
        self.owner = [queries[group[0]].application for group in groups]

    def best(self) -> float:
        """The highest worth of all."""
        found = 0.0
        choices = [self._choices(g) for g in range(len(self.groups))]
        for picked in product(*choices):
            answered = sum(self._answer(g) for g, choice in enumerate(picked) if choice is None)
            total = answered
            for w in range(len(self.served.workers)):
                here = [g for g, choice in enumerate(picked) if choice is not None and choice[0] == w]
                total += max(
                    self._worth(w, order, {g: picked[g][1] for g in here}, joins)  # type: ignore[index]
                    for order in permutations(here)
                    for joins in product((False, True), repeat=max(0, len(here) - 1))
                )
            found = max(found, total)
        return found

    def _choices(self, g: int) -> list[tuple[int, int] | None]:
        able: list[tuple[int, int] | None] = [
            (w, v)
            for w, worker in enumerate(self.served.workers)
            for v in self.served.variants_of(self.owner[g])
            if self.served.variants[v].profile_on(worker.kind) is not None
        ]
        return able + ([None] if self._answer(g) >= 0 else [])

    def _answer(self, g: int) -> float:
        application = self.served.applications[self.owner[g]]
        total = 0.0
        for place in self.groups[g]:
            query = self.queries[place]
            if query.theta is None or application.evidence_accuracy is None:
                return -1.0
            length_ns = query.deadline_ns - query.arrival_ns
            total += application.evidence_accuracy * left_over(application.penalty, 0, query.deadline_ns, length_ns)
        return total

    def _worth(self, w: int, order: Sequence[int], chosen: dict[int, int], joins: Sequence[bool]) -> float:
        """Of one worker's groups in this order; `joins[i]`: the next one is in the batch of the i-th."""
        runs: list[list[int]] = []
        for place, g in enumerate(order):
            before = order[place - 1] if place else -1
            if place and joins[place - 1] and chosen[before] == chosen[g]:
                runs[-1].append(g)
            else:
                runs.append([g])
        now_ns, last, total = 0, -1, 0.0
        for run in runs:
            variant = chosen[run[0]]
            profile = self.served.variants[variant].profile_on(self.served.workers[w].kind)
            assert profile is not None
            members = [place for g in run for place in self.groups[g]]
            if len(run) > 1 and len(members) > profile.max_batch:
                return -1.0
            now_ns += 0 if variant == last else self.served.variants[variant].load_ns
            last = variant
            for at in range(0, len(members), profile.max_batch):
                batch = members[at : at + profile.max_batch]
                now_ns += profile.latency_ns(len(batch))
                for place in batch:
                    query = self.queries[place]
                    accuracy = self.of.accuracy[place][variant - self.served.first_variant[query.application]]
                    penalty = self.served.applications[query.application].penalty
                    length_ns = query.deadline_ns - query.arrival_ns
                    total += accuracy * left_over(penalty, now_ns, query.deadline_ns, length_ns)
        return total
