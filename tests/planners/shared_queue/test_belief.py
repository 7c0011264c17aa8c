"""The table that believes what the queue shows."""

import numpy as np
import pytest

from stretto.core.profile import NS_PER_MS
from stretto.planners.parts.policy import Expectation, Policy
from stretto.planners.shared_queue.belief import believed, likely_load

SLO_NS = 100 * NS_PER_MS
SLACK_NS = (np.arange(11) * 10 * NS_PER_MS).astype(np.int64)
NOTHING = Expectation(0.0, 0.0, 0.0, 0.0)


def marked(load: float, number: int, rows: int) -> Policy:
    """A policy whose cells say whose they are: its variant is its number, its batch the row."""
    variant = np.full((rows, 11), number, np.int32)
    batch = np.repeat(np.maximum(np.arange(rows, dtype=np.int32), 1)[:, None], 11, axis=1)
    return Policy(load, SLACK_NS, variant, batch, NOTHING)


def ladder() -> list[Policy]:
    return [marked(100.0, 0, 20), marked(200.0, 1, 40), marked(400.0, 2, 80)]


def test_one_policy_alone_stays_as_it_is() -> None:
    (only,) = ladder()[:1]
    assert believed([only], SLO_NS, 20.0) is only


@pytest.mark.parametrize("prior", [1.0, 20.0, 500.0])
def test_an_expected_queue_keeps_its_own_policy(prior: float) -> None:
    table = believed(ladder(), SLO_NS, prior)
    assert table.load == 100.0
    for column, slack_ns in enumerate(SLACK_NS):
        expected = 100.0 * (SLO_NS - slack_ns) / 1e9  # who came since the head did
        for queued in range(int(expected) + 2):
            assert table.variant[queued, column] == 0


def test_a_queue_that_shows_a_burst_takes_cells_of_the_higher_load() -> None:
    table = believed(ladder(), SLO_NS, 5.0)
    # 5 were expected within 50 ms. 28 more came; less two deviations, (28 − 4.5 + 5) / (5 + 5) of 100 are 285.
    assert table.variant[29, 5] == 2  # 400 is nearer than 200, by ratio
    assert table.variant[15, 5] == 1  # 145: above √2 · 100
    assert table.variant[14, 5] == 0  # 135
    assert table.variant[79, 0] == 2  # 511, and no policy is nearer than the highest
    assert table.variant.shape == (80, 11)
    # Lower policies have shorter tables, whose last row holds on.
    longer = believed([marked(100.0, 0, 20), marked(1e9, 1, 80)], SLO_NS, 1e12)
    assert (longer.variant == 0).all() and (longer.batch[20:] == 19).all()


def test_belief_rises_with_the_queue_and_falls_with_age() -> None:
    place = believed(ladder(), SLO_NS, 5.0).variant
    assert (np.diff(place, axis=0) >= 0).all()
    assert (np.diff(place, axis=1) >= 0).all()  # more slack: the same queue within less time


def test_the_measured_load_is_the_least_that_is_believed() -> None:
    load = likely_load(100.0, 30, SLO_NS, SLACK_NS, 20.0)
    assert load.shape == (30, 11) and (load >= 100.0).all()
    assert (load[:2] == 100.0).all()
    assert load[29, 10] == pytest.approx(100.0 * (28 + 20) / 20)  # a head that has just come
    assert load[29, 0] == pytest.approx(100.0 * (28 - 2 * 10**0.5 + 20) / (10 + 20))


def test_a_strong_prior_needs_more_to_be_moved() -> None:
    weak, strong = (likely_load(100.0, 60, SLO_NS, SLACK_NS, prior) for prior in (5.0, 50.0))
    assert (weak >= strong).all() and (weak > strong).any()
