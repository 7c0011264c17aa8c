"""The fleet: slots keep their number, whoever comes and goes."""

from __future__ import annotations

import pytest

from stretto.core.errors import StrettoError
from stretto.core.fleet import Fleet, numbered
from stretto.core.worker import Worker, workers


def test_those_that_are_there_are_counted_by_kind() -> None:
    fleet = Fleet(workers(2, "cpu") + workers(1, "gpu"))
    assert len(fleet) == 3 and fleet.kinds == ("cpu", "gpu") and fleet.counts() == {"cpu": 2, "gpu": 1}
    assert Fleet(fleet.slots, (True, True, False)).counts() == {"cpu": 2, "gpu": 0}


def test_further_workers_have_names_of_their_own() -> None:
    fleet = workers(2, "cpu") + workers(1, "gpu")
    assert [worker.name for worker in (*fleet, *numbered(fleet, "cpu", 1, 5))] == ["cpu-0", "cpu-1", "gpu-0", "cpu-2"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(StrettoError, match="the same name"):
        Fleet((Worker("w"), Worker("w")))
    with pytest.raises(StrettoError, match="1 slots are present or not, but 2"):
        Fleet((Worker("w"),), (True, False))
