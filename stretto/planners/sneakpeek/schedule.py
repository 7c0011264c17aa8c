"""The schedule of one window: algorithm 1 with its enhancements, or one request after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.plan import Order
from stretto.planners.sneakpeek.groups import Group, bounded, fewer, form_groups, ordered, urgency
from stretto.planners.sneakpeek.search import find_best
from stretto.planners.sneakpeek.timeline import Problem, answer_worths, locally_optimal
from stretto.planners.sneakpeek.window import Window

MOST_GROUPS = 12  # that the exact search can be asked to take
NEARLY = 0.8  # of the best variant's profiled accuracy: evidence as good as this answers nearly as well
MOST_SPLIT = 64  # groups by class; where there are more, groups are by application
ROOM = 20_000  # nodes of the exact search; beyond, the locally optimal schedule stands


@dataclass(frozen=True)
class Options:
    """How a window is scheduled. The five systems of section 6.1 are settings of these."""

    order: Order = Order.PRIORITY
    max_accuracy: bool = False  # the most accurate variant, whatever its latency; else the locally optimal one
    grouped: bool = True  # by application; else every request is on its own
    split_classes: bool = True  # groups by application and estimated class (section 5.3.2)
    exact_groups: int = 6  # τ: up to so many groups the schedule is the best one
    max_group: int = 0  # largest group; 0: with several workers, one worker's even share of the window
    caution: float = 0.9  # share that a late answer loses in planning, where evidence answers nearly as well
    trials: int = 1000  # changes tried to make a locally optimal schedule of groups better; 0: as published
    room: int = ROOM


@dataclass(frozen=True)
class Batch:
    """Requests of the window, by place, that run together."""

    worker: int
    variant: int
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Batches in the order in which each worker takes them; `answers` are answered at once from their evidence."""

    batches: tuple[Batch, ...] = ()
    answers: tuple[int, ...] = ()
    worth: float = 0.0  # expected, summed over the requests
    is_best: bool = False  # proven, for these groups


def schedule(window: Window, options: Options) -> Schedule:
    """Who runs where, when, and on which variant. Requests that no worker alive can run are left out."""
    urgency_of = urgency(window, options.order)
    evidence = evidence_worth(window, options.caution)
    runnable = (window.catalogue.most[:, window.site] > 0).any(axis=1)
    can_run = np.logical_or.reduceat(runnable, window.catalogue.first_variant)[window.application].tolist()
    places = [place for place in np.argsort(-urgency_of, kind="stable").tolist() if can_run[place]]
    lost = [place for place in range(len(window)) if not can_run[place] and evidence[place] >= 0]
    if not places:
        return Schedule(answers=tuple(lost), worth=float(evidence[lost].sum()))
    most = options.max_group if options.max_group > 0 else -(-len(places) // len(window.worker))
    groups = _groups(window, options, places, most)
    problem = problem_of(window, groups, evidence, options.caution)
    order = ordered(groups, urgency_of)
    solution = locally_optimal(problem, order, options.max_accuracy, options.trials if options.grouped else 0)
    is_best = False
    if options.grouped and not options.max_accuracy and len(groups) <= min(options.exact_groups, MOST_GROUPS):
        best = find_best(problem, solution[3], options.room)
        solution, is_best = best[:4] if len(best[0]) else solution, best[4]
    return as_schedule(window, groups, solution, lost, is_best)


def _groups(window: Window, options: Options, places: list[int], most: int) -> list[Group]:
    """Where splitting by class makes more groups than the exact search takes, those that matter least are not split."""
    if not options.grouped:
        return [np.array([place]) for place in places]
    groups = bounded(form_groups(window, places, options.split_classes), most)
    if not options.split_classes or len(groups) <= options.exact_groups:
        return groups
    if len(groups) > MOST_SPLIT:
        return bounded(form_groups(window, places, False), most)
    applications = {int(window.application[group[0]]) for group in groups}
    return fewer(window, groups, options.exact_groups, most) if len(applications) <= options.exact_groups else groups


def problem_of(window: Window, groups: list[Group], evidence: NDArray[np.float64], caution: float = 0.0) -> Problem:
    """The window's groups as the compiled functions want them."""
    members = np.concatenate(groups)
    catalogue = window.catalogue
    owners = window.application[[int(group[0]) for group in groups]]
    return Problem(
        deadline_ns=window.deadline_ns[members],
        length_ns=np.maximum(1, window.deadline_ns - window.arrival_ns)[members],
        penalty=catalogue.penalty[window.application[members]],
        accuracy=window.accuracy[members],
        evidence=evidence[members],
        late_share=late_share(window, caution)[members],
        first=np.cumsum([0] + [len(group) for group in groups]),
        first_variant=catalogue.first_variant[owners],
        variants=catalogue.variants[owners],
        latency_ns=window.latency_ns,
        most=catalogue.most,
        load_ns=window.load_ns,
        first_load_ns=window.first_load_ns,
        kind=window.site,
        free_ns=window.free_ns,
    )


def evidence_worth(window: Window, caution: float = 0.0) -> NDArray[np.float64]:
    """What an answer from evidence is worth now, by request."""
    penalty = window.catalogue.penalty[window.application]
    worth: NDArray[np.float64] = answer_worths(
        window.evidence_accuracy, penalty, window.now_ns, window.arrival_ns, window.deadline_ns
    )
    return worth * late_share(window, caution, window.now_ns > window.deadline_ns)


def late_share(window: Window, caution: float, late: bool | NDArray[np.bool_] = True) -> NDArray[np.float64]:
    """What a late answer keeps in planning beyond its penalty, by request; one that is not `late` keeps all.

    A sigmoid penalty makes a little lateness cost next to nothing. Where evidence could have answered in time nearly as
    well, being late is taken for a loss all the same.
    """
    best = window.catalogue.accuracy.max(axis=1)[window.application]
    nearly = window.evidence_accuracy >= NEARLY * best
    share: NDArray[np.float64] = np.where(nearly & late, 1.0 - caution, 1.0)
    return share


def as_schedule(window: Window, groups: list[Group], solution: Any, lost: list[int], is_best: bool) -> Schedule:
    """The batches and answers of requests that belong to those of groups; `lost` are answered besides.

    `solution` is what `locally_optimal` gives: batch of each group, worker and variant of each batch, worth.
    """
    batch_of, worker, variant, worth = solution
    members: list[list[int]] = [[] for _ in range(len(worker))]
    answers = list(lost)
    for group, batch in zip(groups, batch_of.tolist(), strict=True):
        (answers if batch < 0 else members[batch]).extend(group.tolist())
    batches = []
    for requests, w, v in zip(members, worker.tolist(), variant.tolist(), strict=True):
        most = int(window.catalogue.most[v, window.site[w]])
        for at in range(0, len(requests), most):
            batches.append(Batch(int(window.worker[w]), v, tuple(requests[at : at + most])))
    return Schedule(tuple(batches), tuple(answers), worth, is_best)
