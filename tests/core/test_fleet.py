"""The fleet: slots keep their number, whoever comes and goes."""

from __future__ import annotations

import pytest

from stretto.core.errors import StrettoError
from stretto.core.fleet import Fleet, numbered
from stretto.core.worker import Worker, workers


def test_workers_leave_join_and_are_added() -> None:
    fleet = Fleet(workers(2, "cpu") + workers(1, "gpu"))
    assert len(fleet) == 3 and fleet.kinds == ("cpu", "gpu") and fleet.counts() == {"cpu": 2, "gpu": 1}
    lost = fleet.left(2)
    assert lost.counts() == {"cpu": 2, "gpu": 0} and lost.slots == fleet.slots
    larger = lost.added(numbered(lost.slots, "cpu", 1, 5))
    assert [worker.name for worker in larger.slots] == ["cpu-0", "cpu-1", "gpu-0", "cpu-2"]
    assert larger.present == (True, True, False, False)
    assert larger.joined(3).joined(2).counts() == {"cpu": 3, "gpu": 1}


def test_what_cannot_be_is_refused() -> None:
    fleet = Fleet(workers(1))
    with pytest.raises(StrettoError, match=r"slot 1 is outside 0 … 0"):
        fleet.left(1)
    with pytest.raises(StrettoError, match="the same name"):
        Fleet((Worker("w"), Worker("w")))
    with pytest.raises(StrettoError, match="1 slots are present or not, but 2"):
        Fleet((Worker("w"),), (True, False))
