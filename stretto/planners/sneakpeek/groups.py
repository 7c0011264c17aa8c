"""Groups of requests (sections 5.2 and 5.3.2), and the order of requests and groups (equations 12 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.plan import Order
from stretto.core.profile import NS_PER_S
from stretto.planners.sneakpeek.window import Window

Group = NDArray[np.int64]  # places of requests in the window, the most urgent first
LONGEST_S = 500.0  # deadlines further away, or longer past, are all the same to equation 12


def urgency(window: Window, order: Order) -> NDArray[np.float64]:
    """By request; the highest goes first.

    Equation 12 counts the deadline in seconds from now: a variance of 0.01 in accuracy (a spread of 0.1) then weighs as
    much as 10 ms, a small part of a deadline of 150 ms but more than what most neighbours differ by. In milliseconds it
    would weigh 0.01 ms, and the order would be that of the deadlines.
    """
    if order is Order.FIRST_COME:
        return -window.arrival_ns.astype(np.float64)
    if order is Order.EARLIEST_DEADLINE:
        return -window.deadline_ns.astype(np.float64)
    count = window.catalogue.variants[window.application]
    mean = window.accuracy.sum(axis=1) / count  # places beyond the last variant are zero
    variance = np.maximum(0.0, (window.accuracy**2).sum(axis=1) / count - mean**2)
    seconds = np.clip((window.deadline_ns - window.now_ns) / NS_PER_S, -LONGEST_S, LONGEST_S)
    priority: NDArray[np.float64] = (1.0 + variance) * np.exp(-seconds)
    return priority


def form_groups(window: Window, places: Sequence[int], by_class: bool) -> list[Group]:
    """`places`, the most urgent first, by application, or by application and class; inconclusive ones together.

    Those that cannot be answered from evidence, because there is none yet, are apart: a group is answered as a whole,
    and one query without evidence would forbid it to all.
    """
    members: dict[tuple[int, int, bool], list[int]] = {}
    applications, classes = window.application.tolist(), window.query_class.tolist()
    may_answer = (window.evidence_accuracy >= 0).tolist()
    for place in places:
        key = applications[place], classes[place] if by_class else -1, may_answer[place]
        members.setdefault(key, []).append(place)
    return [np.array(group) for group in members.values()]


def bounded(groups: Sequence[Group], most: int) -> list[Group]:
    """None larger than `most`: what is more urgent goes into the first part."""
    return [group[at : at + most] for group in groups for at in range(0, len(group), most)]


def ordered(groups: Sequence[Group], urgency_of: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers of groups by mean urgency (equation 14), highest first; equals as they stand."""
    means = [float(urgency_of[group].sum()) / len(group) for group in groups]
    return np.argsort(-np.array(means), kind="stable")


def fewer(window: Window, groups: Sequence[Group], wanted: int, most: int) -> list[Group]:
    """Groups of one application put together until `wanted` are left, or no two may be; none larger than `most`, and
    none with evidence and without.
    """
    sums = np.array([window.accuracy[group].sum(axis=0) for group in groups])
    owners = window.application[[group[0] for group in groups]]
    sizes = np.array([len(group) for group in groups])
    apart = 2 * owners + (window.evidence_accuracy[[group[0] for group in groups]] >= 0)
    labels = put_together(sums, sizes, apart, window.catalogue.variants[owners], wanted, most).tolist()
    parts: dict[int, list[Group]] = {}
    for label, group in zip(labels, groups, strict=True):
        parts.setdefault(label, []).append(group)
    return [part[0] if len(part) == 1 else np.concatenate(part) for part in parts.values()]


@compiled
def put_together(sums: Any, sizes: Any, owners: Any, variants: Any, wanted: int, most: int) -> Any:
    """A label for each group: those first whose variants differ alike in accuracy, as splitting them pays least.

    `sums` are accuracies by variant, summed over the group. What counts is how far each is below the best on average,
    times the size of the smaller group.
    """
    count = len(sizes)
    labels = np.arange(count)
    sums, sizes = sums.copy(), sizes.copy()
    left = count
    while left > wanted:
        least, first, second = np.inf, -1, -1
        for a in range(count):
            for b in range(a + 1, count):
                if labels[a] != a or labels[b] != b or owners[a] != owners[b] or sizes[a] + sizes[b] > most:
                    continue
                best_a = sums[a, : variants[a]].max() / sizes[a]
                best_b = sums[b, : variants[b]].max() / sizes[b]
                apart = 0.0
                for v in range(variants[a]):
                    apart += abs(sums[a, v] / sizes[a] - best_a - sums[b, v] / sizes[b] + best_b)
                apart *= min(sizes[a], sizes[b])
                if apart < least:
                    least, first, second = apart, a, b
        if first < 0:
            break
        sums[first] += sums[second]
        sizes[first] += sizes[second]
        labels[labels == second] = first
        left -= 1
    return labels
