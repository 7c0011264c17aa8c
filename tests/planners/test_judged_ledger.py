"""Rungs of loads: which one a load is on, what serves there, and what is asked for again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.profile import NS_PER_S
from stretto.planners.judged.ledger import AGAIN_NS, MOST_RUNGS, Ledger
from tests.twin.libraries import verdict

LONG = 20.0  # seconds that a load was counted for


def on(ledger: Ledger, *rates: float, counted_s: float = LONG) -> Ledger:
    ledger.move(np.array(rates), [counted_s] * len(rates))
    return ledger


def test_what_is_not_answered_is_asked_for_again_each_time_later() -> None:
    ledger = on(Ledger(1), 100.0)
    assert ledger.is_to_ask(0) and ledger.ask(np.array([100.0]), 0) == (100.0,)
    assert not ledger.is_to_ask(AGAIN_NS - 1) and ledger.is_to_ask(AGAIN_NS)
    assert ledger.ask(np.array([103.0]), AGAIN_NS) == (100.0,), "whoever judges it already must know it again"
    assert not ledger.is_to_ask(3 * AGAIN_NS - 1) and ledger.is_to_ask(3 * AGAIN_NS)
    ledger.take([verdict(100.0)])
    assert not ledger.is_to_ask(10**6 * NS_PER_S) and ledger.in_force() == verdict(100.0)


def test_what_was_known_before_serves_and_is_no_answer() -> None:
    ledger = on(Ledger(1), 100.0)
    ledger.take([verdict(100.0)])
    assert ledger.in_force() == verdict(100.0) and ledger.is_to_ask(0) and not ledger.is_answer(verdict(100.0))


def test_a_promise_that_was_broken_is_asked_for_anew() -> None:
    ledger = on(Ledger(1), 100.0)
    ledger.take([verdict(*ledger.ask(np.array([100.0]), 0))])
    assert not ledger.is_to_ask(AGAIN_NS)
    ledger.ask_anew()
    assert ledger.is_to_ask(1) and ledger.ask(np.array([103.0]), 1) == (103.0,)


def test_the_nearest_is_that_of_the_applications_that_count() -> None:
    """One that is hardly called made a verdict for the true load look farther off than one for three times as much,
    which then was too far: nothing that was judged served.
    """
    ledger = on(Ledger(2), 1000.0, 1.0)
    ledger.take([verdict(1000.0, 6.0)])
    assert ledger.in_force() == verdict(1000.0, 6.0)
    ledger.take([verdict(3000.0, 1.0)])
    assert ledger.in_force() == verdict(1000.0, 6.0)
    ledger.take([verdict(1000.0, 3.0)])
    assert ledger.in_force() == verdict(1000.0, 3.0)
    assert on(ledger, 9000.0, 1.0).in_force() is None


def test_what_was_judged_for_several_at_a_higher_load_serves_a_lower_one() -> None:
    """Regression: a load that fell to two fifths was served by a start candidate that knows nothing of swaps, for a
    third of the time, and 6% of the queries of a cluster were late in place of 1%.
    """
    ledger = on(Ledger(2), 1000.0, 400.0)
    ledger.take([verdict(1000.0, 400.0)])
    assert on(ledger, 400.0, 160.0).in_force() == verdict(1000.0, 400.0)
    assert on(ledger, 100.0, 40.0).in_force() is None and on(ledger, 2500.0, 1000.0).in_force() is None
    alone = on(Ledger(1), 1000.0)
    alone.take([verdict(1000.0)])
    assert on(alone, 400.0).in_force() is None


@pytest.mark.parametrize("rate", [5.0, 20.0, 80.0])
def test_several_steady_applications_stay_on_their_rungs(rate: float) -> None:
    """Each is counted for more or less than it has by chance; together they were on another rung at most looks, and
    the judge never rested.
    """
    random, ledger = np.random.default_rng(3), Ledger(9)
    rungs = set()
    for _ in range(300):
        counted_s = float(random.choice([0.5, 4.0, LONG]))
        rungs.add(on(ledger, *random.poisson(rate * counted_s, 9) / counted_s, counted_s=counted_s).rungs)
    assert len(rungs) <= 20
    before = ledger.rungs
    assert on(ledger, *[4 * rate] * 9).rungs != before, "a change is one all the same"


def test_one_application_is_told_apart_by_the_load_alone() -> None:
    ledger = on(Ledger(1), 100.0, counted_s=0.5)
    before = ledger.rungs
    assert on(ledger, 105.0, counted_s=0.5).rungs == before != on(ledger, 112.0, counted_s=0.5).rungs


def test_a_load_in_lumps_wavers_more() -> None:
    """Requests of eight: what is counted in seconds is a tenth off by chance, a rung to either side."""
    ledger = on(Ledger(1), 350.0)
    before = ledger.rungs
    for rate, counted_s in ((440.0, 4.0), (300.0, 4.0), (390.0, LONG), (320.0, LONG)):
        ledger.move(np.array([rate]), [counted_s], 8.0)
        assert ledger.rungs == before
    ledger.move(np.array([500.0]), [4.0], 8.0)
    assert ledger.rungs > before


def test_with_clients_known_before_goes_by_other_rungs_and_is_no_answer() -> None:
    ledger = on(Ledger(1), 100.0)
    ledger.take([verdict(*ledger.ask(np.array([100.0]), 0))])
    ledger.begin_with_clients()
    assert on(ledger, 100.0).in_force() == verdict(100.0) and ledger.is_to_ask(0)


def test_the_oldest_give_way() -> None:
    ledger = Ledger(1)
    for step in range(3 * MOST_RUNGS):
        rates = np.array([1.13 ** (step % 280) * 1.0001**step])
        ledger.move(rates, [LONG])
        ledger.take([replace(verdict(*ledger.ask(rates, 0)), tried=step)])
    assert len(ledger.verdicts) <= MOST_RUNGS and ledger.here() is not None
    assert len(ledger._asks) <= 2 * MOST_RUNGS >= len(ledger._asked_for)
