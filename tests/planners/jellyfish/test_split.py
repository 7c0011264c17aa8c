"""Two workers' clients split between two models, against every way of doing it."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.jellyfish.split import split

CLIENTS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=7)


@settings(max_examples=300, deadline=None)
@given(
    CLIENTS,
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(0, 15), st.integers(0, 15)),
    st.data(),
)
def test_the_first_worker_has_as_much_as_it_can(
    clients: list[tuple[int, int, int]], batches: tuple[int, int], capacities: tuple[int, int], data: st.DataObject
) -> None:
    """A client goes where the batch is not larger than it allows, and each worker takes no more steps than it can."""
    steps, *allows = (np.array(column, np.int64) for column in zip(*clients, strict=True))
    rate = steps * np.array([data.draw(st.floats(0.5, 1.0)) for _ in clients])
    best = -1.0
    for sides in itertools.product((0, 1), repeat=len(clients)):
        fits = all(allows[side][client] >= batches[side] for client, side in enumerate(sides))
        taken = [sum(int(steps[client]) for client, of in enumerate(sides) if of == side) for side in (0, 1)]
        if fits and taken[0] <= capacities[0] and taken[1] <= capacities[1]:
            best = max(best, sum(float(rate[client]) for client, of in enumerate(sides) if of == 0))

    most = int(steps.sum()) + 1
    is_first = np.zeros(len(clients), np.bool_)
    members, work = np.arange(len(clients)), (np.zeros(most), np.zeros((len(clients), most), np.bool_))
    found = split(steps, rate, members, np.array(allows), np.array(batches), np.array(capacities), *work, is_first)
    assert (found < 0) == (best < 0) and (best < 0 or abs(found - best) < 1e-6)
    if found >= 0:
        for client, first in enumerate(is_first.tolist()):
            assert allows[not first][client] >= batches[not first]
        assert abs(rate[is_first].sum() - found) < 1e-6
        assert steps[is_first].sum() <= capacities[0] and steps[~is_first].sum() <= capacities[1]
