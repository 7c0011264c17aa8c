"""What the exact search looks up, compiled: figures of sets of groups, and what a group can gain at the most.

The bound: each group ends no earlier than if it were next on the present worker, or first on one that comes after. It
is tabulated by the moment at which the worker is free, for the earliest moment of each cell. (A bound that prices the
worker time which all groups share was tried too, and dropped hardly any state more.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.sneakpeek.timeline import answers_worth, group_worth, run_ns

CELLS = 48


class Sets(NamedTuple):
    """What is known of sets of groups, and of groups, before the search."""

    size: NDArray[np.int64]  # requests, by set
    answered: NDArray[np.float64]  # worth of answering the set from evidence
    same: NDArray[np.int64]  # by group: those of its application
    in_time: NDArray[np.float64]  # [set of one application, variant of it] gain where it ends in time
    soonest_ns: NDArray[np.int64]  # first deadline, by set of one application
    took_ns: NDArray[np.int64]  # [worker, set of one application, variant of it] time of the run; -1: cannot
    table: NDArray[np.float64]  # [worker, loaded or not, group, cell] the most of a group that is next
    later: NDArray[np.float64]  # [worker, group] the most on a worker from this one on, or from evidence
    origin_ns: int  # of the cells
    step_ns: int


@compiled
def bound_tables(p: Any) -> tuple[Any, int, int]:
    """[worker, loaded or not, group, cell]: the most that a group gains where the worker is free within a cell."""
    groups = len(p.first) - 1
    origin_ns = p.free_ns.min()
    end_ns = (p.deadline_ns + p.length_ns).max()  # from here on nothing is worth anything
    step_ns = max(0, end_ns - origin_ns) // (CELLS - 1) + 1
    table = np.zeros((len(p.free_ns), 2, groups, CELLS))
    for w in range(len(p.free_ns)):
        for g in range(groups):
            size = p.first[g + 1] - p.first[g]
            for variant in range(p.first_variant[g], p.first_variant[g] + p.variants[g]):
                if p.most[variant, p.kind[w]] == 0:
                    continue
                for loaded in range(2):
                    load_ns = 0 if loaded else p.load_ns[w, variant]
                    for cell in range(CELLS):
                        at_ns = origin_ns + cell * step_ns + load_ns
                        worth = group_worth(p, g, variant, p.kind[w], at_ns, 0, size)
                        if worth <= 0.0:
                            break
                        table[w, loaded, g, cell] = max(table[w, loaded, g, cell], worth)
    return table, origin_ns, step_ns


@compiled
def in_time_sets(p: Any, same: Any, size: Any) -> tuple[Any, Any, Any]:
    """For sets of groups of one application: gain in time by variant, first deadline, and [worker, …] time of the run.

    -1 where the worker cannot run the variant, or several groups at once are more than a batch.
    """
    in_time = np.zeros((len(size), p.accuracy.shape[1]))
    soonest_ns = np.empty(len(size), np.int64)
    took_ns = np.full((len(p.kind), len(size), p.accuracy.shape[1]), -1, np.int64)
    for g in range(len(same)):
        if same[g] & ((1 << g) - 1):
            continue
        part = 0
        while part != same[g]:
            part = (part - same[g]) & same[g]
            h = 0
            while not part >> h & 1:
                h += 1
            rest = part & (part - 1)
            soonest_ns[part] = p.deadline_ns[p.first[h] : p.first[h + 1]].min()
            if rest:
                soonest_ns[part] = min(soonest_ns[part], soonest_ns[rest])
            for local in range(p.variants[g]):
                in_time[part, local] = in_time[rest, local] if rest else 0.0
                for r in range(p.first[h], p.first[h + 1]):
                    in_time[part, local] += p.accuracy[r, local]
                for w in range(len(p.kind)):
                    most = p.most[p.first_variant[g] + local, p.kind[w]]
                    if most > 0 and (rest == 0 or size[part] <= most):
                        took_ns[w, part, local] = run_ns(p, p.first_variant[g] + local, p.kind[w], size[part])
    return in_time, soonest_ns, took_ns


@compiled
def known_sets(p: Any) -> Any:
    """Everything that the search looks up."""
    groups = len(p.first) - 1
    workers = len(p.free_ns)
    answers = answers_worth(p)
    size = np.zeros(1 << groups, np.int64)
    answered = np.zeros(1 << groups)
    same = np.zeros(groups, np.int64)
    for g in range(groups):
        for part in range(1 << g):
            size[part | 1 << g] = size[part] + p.first[g + 1] - p.first[g]
            answered[part | 1 << g] = answered[part] + answers[g]
        for other in range(groups):
            if p.first_variant[other] == p.first_variant[g]:
                same[g] |= 1 << other
    table, origin_ns, step_ns = bound_tables(p)
    later = np.empty((workers + 1, groups))
    later[workers] = answers
    for w in range(workers - 1, -1, -1):
        cell = min(CELLS - 1, (p.free_ns[w] - origin_ns) // step_ns)
        for g in range(groups):
            later[w, g] = max(later[w + 1, g], table[w, 1, g, cell])
    in_time, soonest_ns, took_ns = in_time_sets(p, same, size)
    return Sets(size, answered, same, in_time, soonest_ns, took_ns, table, later, origin_ns, step_ns)
