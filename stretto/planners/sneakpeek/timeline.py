"""Schedules of groups, compiled: what one is worth, and the locally optimal one (section 5.1.2).

A schedule gives each group a variant, a worker and a place in that worker's order, or answers it from its evidence.
Groups of one application that follow each other on one variant may run as one batch; then they end together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.lateness import kept_share

ALIKE = 1e-12  # worths closer than this are equal
NO_ANSWER = -1e18  # worth of an answer that cannot be given


class Problem(NamedTuple):
    """Requests stand group by group: group g has those from first[g] to first[g + 1]. V variants in all, K kinds."""

    deadline_ns: NDArray[np.int64]  # by request
    length_ns: NDArray[np.int64]  # of the deadline, from the arrival; above zero
    penalty: NDArray[np.int64]
    accuracy: NDArray[np.float64]  # [request, variant of its application]
    evidence: NDArray[np.float64]  # worth of an answer from evidence now, by request; NO_ANSWER: none
    late_share: NDArray[np.float64]  # of its worth that counts in planning where the answer is late, by request
    first: NDArray[np.int64]  # [groups + 1]
    first_variant: NDArray[np.int64]  # by group
    variants: NDArray[np.int64]  # how many, by group
    latency_ns: NDArray[np.int64]  # [V, K, batch]
    most: NDArray[np.int64]  # [V, K] the largest batch; 0: cannot run
    load_ns: NDArray[np.int64]  # [worker, V] before a variant that the worker did not run last
    first_load_ns: NDArray[np.int64]  # [worker, V] before the worker's first batch
    kind: NDArray[np.int64]  # by worker
    free_ns: NDArray[np.int64]  # by worker


@compiled
def answer_worths(accuracy: Any, penalty: Any, now_ns: int, arrival_ns: Any, deadline_ns: Any) -> Any:
    """Of answers from evidence given now, by request; NO_ANSWER where the accuracy is below zero."""
    worth = np.full(len(accuracy), NO_ANSWER)
    for r in range(len(accuracy)):
        if accuracy[r] >= 0.0:
            length_ns = max(1, deadline_ns[r] - arrival_ns[r])
            worth[r] = accuracy[r] * kept_share(penalty[r], now_ns, deadline_ns[r], length_ns)
    return worth


@compiled
def run_ns(p: Any, variant: int, kind: int, size: int) -> int:
    """How long so many queries take: full batches, then the rest."""
    most = p.most[variant, kind]
    time_ns: int = (size // most) * p.latency_ns[variant, kind, most] + p.latency_ns[variant, kind, size % most]
    return time_ns


@compiled
def group_worth(p: Any, g: int, variant: int, kind: int, start_ns: int, before: int, size: int) -> float:
    """What group g gains within a run of `size` queries, `before` of which stand ahead of it."""
    most = p.most[variant, kind]
    local = variant - p.first_variant[g]
    whole_ns = start_ns + run_ns(p, variant, kind, size)
    total = 0.0
    for r in range(p.first[g], p.first[g + 1]):
        end_ns = whole_ns
        if size > most:
            batch = (before + r - p.first[g]) // most + 1
            end_ns = min(whole_ns, start_ns + batch * p.latency_ns[variant, kind, most])
        worth = p.accuracy[r, local] * kept_share(p.penalty[r], end_ns, p.deadline_ns[r], p.length_ns[r])
        total += worth if end_ns <= p.deadline_ns[r] else worth * p.late_share[r]
    return total


@compiled
def answers_worth(p: Any) -> Any:
    """By group: what it is worth to answer all of it from evidence."""
    groups = len(p.first) - 1
    worth = np.zeros(groups)
    for g in range(groups):
        for r in range(p.first[g], p.first[g + 1]):
            if p.evidence[r] < 0.0 or worth[g] < 0.0:
                worth[g] = NO_ANSWER
            else:
                worth[g] += p.evidence[r]
    return worth


@compiled
def take_locally(p: Any, order: Any, max_accuracy: bool) -> tuple[Any, Any]:
    """Worker and variant of each group, chosen in `order` by equation 13; -1 where evidence is worth more.

    `max_accuracy`: the most accurate variant, whatever its latency. Each group is timed as a run of its own
    (equation 1): who decides in isolation cannot know what will run together.
    """
    groups = len(order)
    worker_of = np.full(groups, -1, np.int64)
    variant_of = np.full(groups, -1, np.int64)
    answers = answers_worth(p)
    free_ns = p.free_ns.copy()
    last = np.full(len(free_ns), -1, np.int64)
    for g in order:
        size = p.first[g + 1] - p.first[g]
        best = NO_ANSWER / 2
        best_end = 0
        for w in range(len(free_ns)):
            for variant in range(p.first_variant[g], p.first_variant[g] + p.variants[g]):
                if p.most[variant, p.kind[w]] == 0:
                    continue
                start_ns = free_ns[w]
                if last[w] < 0:
                    start_ns += p.first_load_ns[w, variant]
                elif last[w] != variant:
                    start_ns += p.load_ns[w, variant]
                end_ns = start_ns + run_ns(p, variant, p.kind[w], size)
                worth = group_worth(p, g, variant, p.kind[w], start_ns, 0, size)
                if max_accuracy:
                    worth = p.accuracy[p.first[g] : p.first[g + 1], variant - p.first_variant[g]].sum()
                if worth > best + ALIKE or (worth > best - ALIKE and end_ns < best_end):
                    best, best_end = worth, end_ns
                    worker_of[g], variant_of[g] = w, variant
        if answers[g] >= best and (not max_accuracy or answers[g] > best):
            worker_of[g] = variant_of[g] = -1
        elif worker_of[g] >= 0:
            free_ns[worker_of[g]] = best_end
            last[worker_of[g]] = variant_of[g]
    return worker_of, variant_of


@compiled
def run_worth(p: Any, groups: Any, count: int, variant: int, kind: int, start_ns: int, size: int) -> float:
    """What the first `count` of `groups` gain as one run."""
    total = 0.0
    before = 0
    for place in range(count):
        g = groups[place]
        total += group_worth(p, g, variant, kind, start_ns, before, size)
        before += p.first[g + 1] - p.first[g]
    return total


@compiled
def run_in_order(p: Any, order: Any, worker_of: Any, variant_of: Any, batch_of: Any, placed: Any) -> tuple[int, float]:
    """Fill `batch_of` by group and `placed` [batch, worker and variant]; returns how many batches, and their worth.

    Neighbours on one variant run together where that is worth no less, to those in the batch so far and the one that
    joins, than one after the other. A group on no worker is answered from its evidence, or gains nothing.
    """
    members = np.empty(len(order), np.int64)
    total = 0.0
    batches = 0
    for w in range(len(p.free_ns)):
        kind = p.kind[w]
        start_ns, end_ns = p.free_ns[w], p.free_ns[w]
        count, size, last, worth = 0, 0, -1, 0.0
        for g in order:
            if worker_of[g] != w:
                continue
            variant = variant_of[g]
            group_size = p.first[g + 1] - p.first[g]
            if variant == last and size + group_size <= p.most[variant, kind]:
                members[count] = g
                together = run_worth(p, members, count + 1, variant, kind, start_ns, size + group_size)
                together_ns = start_ns + run_ns(p, variant, kind, size + group_size)
                apart = worth + group_worth(p, g, variant, kind, end_ns, 0, group_size)
                if together >= apart - ALIKE and together_ns <= end_ns + run_ns(p, variant, kind, group_size):
                    total += together - worth
                    worth, end_ns = together, together_ns
                    count += 1
                    size += group_size
                    batch_of[g] = batches - 1
                    continue
            load_ns = 0 if variant == last else p.load_ns[w, variant] if last >= 0 else p.first_load_ns[w, variant]
            start_ns = end_ns + load_ns
            end_ns = start_ns + run_ns(p, variant, kind, group_size)
            worth = group_worth(p, g, variant, kind, start_ns, 0, group_size)
            total += worth
            members[0], count, size, last = g, 1, group_size, variant
            batch_of[g] = batches
            placed[batches, 0], placed[batches, 1] = w, variant
            batches += 1
    for g in order:
        if worker_of[g] < 0:
            batch_of[g] = -1
            for r in range(p.first[g], p.first[g + 1]):
                total += max(0.0, p.evidence[r])
    return batches, total


@compiled
def improve(p: Any, order: Any, worker_of: Any, variant_of: Any, trials: int) -> None:
    """Change one group's variant or worker, or its place in the order, as long as that is worth more; in place."""
    groups = len(order)
    answers = answers_worth(p)
    batch_of, placed = np.empty(groups, np.int64), np.empty((groups, 2), np.int64)
    _, best = run_in_order(p, order, worker_of, variant_of, batch_of, placed)
    better = True
    while better:
        better = False
        for g in range(groups):
            for w in range(-1 if answers[g] >= 0.0 else 0, len(p.free_ns)):
                for local in range(p.variants[g] if w >= 0 else 1):
                    variant = p.first_variant[g] + local if w >= 0 else -1
                    if w >= 0 and p.most[variant, p.kind[w]] == 0:
                        continue
                    before = worker_of[g], variant_of[g]
                    if before == (w, variant):
                        continue
                    worker_of[g], variant_of[g] = w, variant
                    _, worth = run_in_order(p, order, worker_of, variant_of, batch_of, placed)
                    trials -= 1
                    if worth > best + ALIKE:
                        best, better = worth, True
                    else:
                        worker_of[g], variant_of[g] = before
        for here in range(groups):
            for there in range(groups):
                if trials <= 0:
                    return
                if here == there or worker_of[order[here]] < 0 or worker_of[order[here]] != worker_of[order[there]]:
                    continue
                move(order, here, there)
                _, worth = run_in_order(p, order, worker_of, variant_of, batch_of, placed)
                trials -= 1
                if worth > best + ALIKE:
                    best, better = worth, True
                else:
                    move(order, there, here)


@compiled
def move(order: Any, here: int, there: int) -> None:
    """Take the group at one place to another; those between make room."""
    moved = order[here]
    step = 1 if there > here else -1
    for place in range(here, there, step):
        order[place] = order[place + step]
    order[there] = moved


@compiled
def locally_optimal(p: Any, order: Any, max_accuracy: bool, trials: int) -> tuple[Any, Any, Any, float]:
    """Batch of each group (-1: answered), worker and variant of each batch, and worth.

    Choices are made in isolation, in `order`; then so many `trials` may be spent to make them better.
    """
    worker_of, variant_of = take_locally(p, order, max_accuracy)
    if trials > 0:
        order = order.copy()
        improve(p, order, worker_of, variant_of, trials)
    batch_of, placed = np.empty(len(order), np.int64), np.empty((len(order), 2), np.int64)
    batches, worth = run_in_order(p, order, worker_of, variant_of, batch_of, placed)
    return batch_of, placed[:batches, 0].copy(), placed[:batches, 1].copy(), worth
