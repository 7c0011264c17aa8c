"""What a run of frames comes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from stretto.client.network.result import rank_correlation
from tests.client.network.results import FRAMES, made_up


def test_a_summary_counts_every_frame_once() -> None:
    summary = made_up().summary()
    assert summary["frames"] == sum(summary["outcomes"].values()) == 2 * FRAMES
    assert summary["miss_rate"] == pytest.approx(3 / (2 * FRAMES))
    assert summary["outcomes"]["on_time"] == 37 and summary["outcomes"]["late"] == 1
    assert summary["accuracy"] == pytest.approx(37 / 38)  # of the answers, the late one too
    assert summary["correct_on_time_share"] == pytest.approx(36 / 40)
    assert summary["refusals"] == {"overloaded": 1} and summary["bandwidth_measured_over_given"] == 0.75
    assert sum(summary["edges"].values()) == pytest.approx(1) and set(summary["edges"]) == {"8", "24"}
    walking, standing = summary["clients"]
    assert walking["frames"] == standing["frames"] == FRAMES
    assert walking["size_follows_bandwidth"] > 0.7 and standing["size_follows_bandwidth"] is None
    assert walking["mean_edge"] < standing["mean_edge"] == 24


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40))
def test_rank_correlation_is_spearman_s(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(values, np.float64) for values in zip(*pairs, strict=True))
    ours = rank_correlation(one, other)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        assert ours is None
    else:
        assert ours == pytest.approx(spearmanr(one, other).statistic, abs=1e-9)
