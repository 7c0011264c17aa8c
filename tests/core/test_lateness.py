"""What lateness leaves of an answer's worth."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stretto.core.application import Penalty
from stretto.core.lateness import kept_share
from tests.planners.sneakpeek.cases import left_over


@pytest.mark.parametrize("penalty", list(Penalty))
def test_late_answers_keep_a_share_that_falls_from_all_to_nothing(penalty: Penalty) -> None:
    shares = [kept_share(int(penalty), 100 + late, 100, 80) for late in range(-20, 100)]
    assert shares[:21] == [1.0] * 21  # in time, the deadline included
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert shares[100:] == [0.0] * 20  # late by the length of the deadline, or more
    assert shares == pytest.approx([left_over(penalty, 100 + late, 100, 80) for late in range(-20, 100)])


def test_as_printed_every_late_answer_would_be_worth_nothing_or_less() -> None:
    """max(1, γ) is at least 1; what we take, min(1, γ), is between the two ends."""
    halfway = kept_share(int(Penalty.LINEAR), 140, 100, 80)
    assert halfway == pytest.approx(0.5)
    assert kept_share(int(Penalty.SIGMOID), 140, 100, 80) == pytest.approx(0.5)
    assert kept_share(int(Penalty.SIGMOID), 120, 100, 80) == pytest.approx(1 - 1 / (1 + (0.25 / 0.75) ** -3))
    assert 1 - max(1.0, 1 - halfway) == 0.0 and 1 - max(1.0, (300 - 100) / 80) < 0.0
