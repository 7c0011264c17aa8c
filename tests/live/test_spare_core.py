"""Whether the serving leaves a core for work beside it, and how far the loads of its workers are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stretto.live.orders import Orders
from tests.live.real import until, within
from tests.live.test_service import service_of
from tests.repository.build import build


@pytest.mark.parametrize(("cores", "loops", "when_busy"), [(1, 1, False), (2, 1, False), (3, 1, True), (6, 5, False)])
def test_a_core_is_spare_beside_loops_and_busy_workers(tmp_path: Path, cores: int, loops: int, when_busy: bool) -> None:
    built = build(tmp_path / "models")

    async def work() -> None:
        async with service_of(built.root) as service:
            service._cores, service.loops = cores, loops
            crew = service.engine.crew
            await until(lambda: not crew.busy_here())
            assert service._has_spare_core()
            job: Any = object()
            crew.members[0].jobs.append(job)
            assert crew.busy_here() == [0]
            assert service._has_spare_core() is when_busy
            crew.members[0].executor.is_here = False
            assert service._has_spare_core(), "a worker elsewhere takes no core of this machine"
            crew.members[0].jobs.remove(job)

    within(60, work)


def test_how_far_a_load_is_does_not_make_it_another() -> None:
    """Else a load that hangs would never have gone on for too long."""
    told: list[int] = []
    listener: Any = None
    orders = Orders(0, listener, lambda number, spec, is_beside: told.append(number))
    spec: Any = type("Spec", (), {"key": "model"})()
    ended: list[dict[str, str]] = []
    orders.hold([spec], ended.append)
    (before,) = orders.loading(())
    orders.went_on(told[0], 0.75)
    (after,) = orders.loading(())
    assert (before.share, after.share) == (0.0, 0.75)
    assert before == after
    orders.went_on(told[0] + 1, 0.5)  # of an order that nobody gave
    orders.ended(told[0], "")
    assert ended == [{}] and not orders.loading(())
