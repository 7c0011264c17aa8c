"""Stretches of arrivals: a load that moves by the second, at one level."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.profile import NS_PER_S
from stretto.twin.stretch import LEVEL_NS, ArrivalStretch, levelled
from tests.twin.made import requests_at


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
