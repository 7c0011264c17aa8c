"""The best schedule of groups, compiled (algorithm 1, up to τ groups).

Dynamic programming. Workers are filled one after another, so that a state is the set of groups that are placed, the
time at which the present worker is free, and what it ran last. What a later group is worth never grows with time; so
among the states of one set and one last variant only those count that no other beats in both time and worth. And the
last variant does not count once no group is left that could use it again. States that cannot reach a schedule already
known are dropped (`bounds`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.lateness import kept_share
from stretto.planners.sneakpeek.bounds import CELLS, known_sets
from stretto.planners.sneakpeek.timeline import ALIKE


class Nodes(NamedTuple):
    """States of the search. A front is a list of nodes linked by `after`, rising in time and in worth."""

    free_ns: NDArray[np.int64]
    worth: NDArray[np.float64]
    parent: NDArray[np.int64]
    batch: NDArray[np.int64]  # the set of groups of the last batch; 0: none yet on this worker
    variant: NDArray[np.int64]
    worker: NDArray[np.int64]
    after: NDArray[np.int64]
    front: NDArray[np.int64]  # [set of groups placed, last variant] the first node
    used: NDArray[np.int64]  # [1]


@compiled
def add_node(nodes: Any, free_ns: int, worth: float, parent: int, batch: int, variant: int, worker: int) -> int:
    """Its number, or -1 where there is no room."""
    number: int = nodes.used[0]
    if number == len(nodes.worth):
        return -1
    nodes.used[0] += 1
    nodes.free_ns[number] = free_ns
    nodes.worth[number] = worth
    nodes.parent[number] = parent
    nodes.batch[number] = batch
    nodes.variant[number] = variant
    nodes.worker[number] = worker
    nodes.after[number] = -1
    return number


@compiled
def put_in_front(
    nodes: Any, reached: int, slot: int, end_ns: int, worth: float, parent: int, batch: int, variant: int, worker: int
) -> int:
    """A new node, unless one of the front is no later and worth no less (0); those that it beats leave the front.

    -1: there is no room.
    """
    before = -1
    at = nodes.front[reached, slot]
    while at >= 0 and nodes.free_ns[at] <= end_ns:
        if nodes.worth[at] >= worth - ALIKE:
            return 0
        before, at = at, nodes.after[at]
    while at >= 0 and nodes.worth[at] <= worth + ALIKE:
        at = nodes.after[at]
    number = add_node(nodes, end_ns, worth, parent, batch, variant, worker)
    if number >= 0:
        nodes.after[number] = at
        if before < 0:
            nodes.front[reached, slot] = number
        else:
            nodes.after[before] = number
    return number


@compiled
def extend(p: Any, sets: Any, nodes: Any, mask: int, slot: int, node: int, w: int, best: float) -> bool:
    """From each node of a front, every batch that may come next on the worker; false where there was no room.

    Arrays have names of their own here, and are handed to nobody within the loops: each mention of a tuple's array, and
    each call with one, would count references, which takes longer than all the rest.
    """
    deadline_ns, length_ns, penalty, accuracy, first = p.deadline_ns, p.length_ns, p.penalty, p.accuracy, p.first
    first_variant, variants, latency_ns = p.first_variant, p.variants, p.latency_ns[:, p.kind[w]]
    most, late_share = p.most[:, p.kind[w]], p.late_share
    load_ns = p.first_load_ns[w] if slot == len(p.most) + 1 else p.load_ns[w]
    later_load_ns = p.load_ns[w]
    same, size, in_time, soonest_ns, took = sets.same, sets.size, sets.in_time, sets.soonest_ns, sets.took_ns[w]
    table, later = sets.table[w], sets.later[w + 1]
    from_ns, worth_of, after = nodes.free_ns, nodes.worth, nodes.after
    origin_ns, step_ns = sets.origin_ns, sets.step_ns
    groups, nothing, everything = len(same), len(most), len(size) - 1
    while node >= 0:
        seen = 0
        for g in range(groups):
            ours = same[g]
            left = ours & ~mask & ~seen
            seen |= ours
            batch = left
            while batch > 0:
                reached = mask | batch
                rest = everything & ~reached
                for local in range(variants[g]):
                    variant = first_variant[g] + local
                    if took[batch, local] < 0:
                        continue
                    start_ns = from_ns[node] + (load_ns[variant] if slot != variant else 0)
                    end_ns = start_ns + took[batch, local]
                    cell = min(CELLS - 1, (end_ns - origin_ns) // step_ns)
                    bound = 0.0
                    for h in range(groups):
                        if rest >> h & 1:
                            bound += max(later[h], table[ours >> h & 1, h, cell])
                    worth = worth_of[node] + in_time[batch, local]
                    if worth + bound <= best + ALIKE:
                        continue
                    if end_ns > soonest_ns[batch]:
                        worth = worth_of[node]
                        before = 0
                        for h in range(groups):
                            if not batch >> h & 1:
                                continue
                            for r in range(first[h], first[h + 1]):
                                ended_ns = end_ns
                                if size[batch] > most[variant]:
                                    full = before // most[variant] + 1
                                    ended_ns = min(end_ns, start_ns + full * latency_ns[variant, most[variant]])
                                    before += 1
                                share = kept_share(penalty[r], ended_ns, deadline_ns[r], length_ns[r])
                                if ended_ns > deadline_ns[r]:
                                    share *= late_share[r]
                                worth += accuracy[r, local] * share
                        if worth + bound <= best + ALIKE:
                            continue
                    last = variant if ours & rest and later_load_ns[variant] > 0 else nothing
                    number = put_in_front(nodes, reached, last, end_ns, worth, node, batch, variant, w)
                    if number < 0:
                        return False
                batch = (batch - 1) & left
        node = after[node]
    return True


@compiled
def find_best(p: Any, least: float, room: int) -> tuple[Any, Any, Any, float, bool]:
    """The best schedule that is worth more than `least`, and whether the search came to its end within `room` nodes.

    Batches of groups, worker and variant of each batch, worth. Without batches of groups, none is worth more.
    """
    groups = len(p.first) - 1
    models = len(p.most)  # last variants are numbered: those, one that no longer counts, and none yet on this worker
    everything = (1 << groups) - 1
    sets = known_sets(p)
    whole = np.empty((6, room), np.int64)
    front = np.empty((everything + 1, models + 2), np.int64)
    nodes = Nodes(
        whole[0], np.empty(room), whole[1], whole[2], whole[3], whole[4], whole[5], front, np.zeros(1, np.int64)
    )
    carried = np.full(everything + 1, -1, np.int64)  # the best node of each set when a worker is full
    carried[0] = add_node(nodes, 0, 0.0, -1, 0, -1, -1)
    best, best_node = least, -1
    finished = True
    for w in range(len(p.free_ns)):
        front[:] = -1
        for mask in range(everything + 1):
            if carried[mask] >= 0:
                begin = add_node(nodes, p.free_ns[w], nodes.worth[carried[mask]], carried[mask], 0, -1, w)
                finished = finished and begin >= 0
                front[mask, models + 1] = begin
        carried[:] = -1
        for mask in range(everything + 1):
            for slot in range(models + 2):
                first = node = front[mask, slot]
                while node >= 0:
                    if carried[mask] < 0 or nodes.worth[node] > nodes.worth[carried[mask]]:
                        carried[mask] = node
                    ended = nodes.worth[node] + sets.answered[everything & ~mask]
                    if ended > best + ALIKE:
                        best, best_node = ended, node
                    node = nodes.after[node]
                if first >= 0 and finished:
                    finished = extend(p, sets, nodes, mask, slot, first, w, best)
    batch_of = np.full(groups if best_node >= 0 else 0, -1, np.int64)
    worker = np.empty(groups, np.int64)
    variant = np.empty(groups, np.int64)
    place = groups
    while best_node >= 0:
        if nodes.batch[best_node] > 0:
            place -= 1
            worker[place], variant[place] = nodes.worker[best_node], nodes.variant[best_node]
            for g in range(groups):
                if nodes.batch[best_node] >> g & 1:
                    batch_of[g] = place
        best_node = nodes.parent[best_node]
    for g in range(len(batch_of)):
        batch_of[g] = batch_of[g] - place if batch_of[g] >= 0 else -1
    return batch_of, worker[place:], variant[place:], best, finished
