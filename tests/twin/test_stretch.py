"""Stretches of arrivals: a load that moves by the second, at one level."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.profile import NS_PER_S
from stretto.twin.stretch import LASTING_NS, LEVEL_NS, ArrivalStretch, levelled, levelled_together
from tests.twin.made import bursty, poisson, requests_at


def test_a_load_that_moves_is_levelled_and_its_requests_stay() -> None:
    """Half a second of 200/s, half a second of 1000/s, and so on for ten seconds."""
    levels = [(place, 200.0 if place % 2 else 1000.0) for place in range(20)]
    parts = [place * LEVEL_NS + np.arange(0, LEVEL_NS, round(NS_PER_S / rate)) for place, rate in levels]
    stretch = ArrivalStretch.of(requests_at(np.concatenate(parts)), 10 * NS_PER_S, (0.5,))
    level = levelled(stretch)
    assert level.rate == pytest.approx(600.0) and level.span_ns == 10 * NS_PER_S and level.class_shares == (0.5,)
    assert len(level.requests) == len(stretch.requests)
    gaps = np.diff(level.requests["offset_ns"])
    assert gaps.min() >= NS_PER_S / 600 - 2 and gaps.max() <= NS_PER_S / 600 + 2


def test_what_is_no_more_than_chance_or_bursts_is_left_as_it_was() -> None:
    random = np.random.default_rng(3)
    poisson = np.sort(random.integers(0, 10 * NS_PER_S, 5000))
    steady = ArrivalStretch.of(requests_at(poisson), 10 * NS_PER_S)
    assert levelled(steady) is steady
    lumps = ArrivalStretch.of(requests_at(np.sort(np.repeat(poisson[::8], 8))), 10 * NS_PER_S)
    assert levelled(lumps) is lumps
    short = ArrivalStretch.of(requests_at(poisson[poisson < NS_PER_S]), NS_PER_S)
    assert levelled(short) is short
    assert levelled(ArrivalStretch(50.0)).rate == 50.0


def test_requests_that_come_one_by_one_are_told_from_bursts_levels_and_clocks() -> None:
    def is_poisson(times_ns: np.ndarray, seconds: int = 5, rows: int = 1) -> bool:
        return ArrivalStretch.of(requests_at(times_ns, rows), seconds * NS_PER_S).is_poisson

    by_chance = [is_poisson(poisson(rate, 5, seed)) for rate in (80, 2400) for seed in range(50)]
    assert np.mean(by_chance) >= 0.95
    assert is_poisson(poisson(100, 5, 1), rows=8)  # a request of eight rows is one that comes
    assert not is_poisson(np.sort(np.repeat(poisson(100, 5, 1), 8)))
    assert not is_poisson(bursty(200, 5, 1))
    assert not is_poisson(np.arange(0, 5 * NS_PER_S, NS_PER_S // 100))
    levels = np.concatenate([start * NS_PER_S + poisson(600 if start % 2 else 1000, 1, start) for start in range(20)])
    assert not is_poisson(levels, 20)


def test_applications_are_levelled_together_by_four_seconds_and_keep_what_is_shorter() -> None:
    """Four seconds of 600/s, four of 200/s, and so on, of "a"; "b" has the same in every other second."""
    times: dict[str, list[np.ndarray]] = {"a": [], "b": []}
    for second in range(40):
        rate = 200 if second // 4 % 2 else 600
        times["a"].append(second * NS_PER_S + np.arange(0, NS_PER_S, NS_PER_S // rate))
        if second % 2:
            times["b"].append(second * NS_PER_S + np.arange(0, NS_PER_S, NS_PER_S // rate))
    stretches = {
        name: ArrivalStretch.of(requests_at(np.concatenate(each)), 40 * NS_PER_S) for name, each in times.items()
    }
    level = levelled_together(stretches)
    assert [len(level[name].requests) for name in level] == [len(stretches[name].requests) for name in level]
    together = level["a"].counts(LASTING_NS) + level["b"].counts(LASTING_NS)
    assert together.min() > 0.8 * together.max()  # what alternates by the second lies elsewhere in them
    seconds = level["b"].counts(NS_PER_S)
    assert seconds.min() < 0.2 * seconds.max()


def test_applications_of_which_none_moves_or_that_were_seen_briefly_are_left_as_they_were() -> None:
    steady = ArrivalStretch.of(requests_at(poisson(100.0, 20.0, 5)), 20 * NS_PER_S)
    brief = ArrivalStretch.of(requests_at(bursty(100.0, 5.0, 5)), 5 * NS_PER_S)
    unknown = ArrivalStretch(50.0)
    level = levelled_together({"a": steady, "b": brief, "c": unknown})
    assert level["a"] is steady and level["b"] is brief and level["c"] is unknown
