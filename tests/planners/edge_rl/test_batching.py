"""The batching rule of edge RL (section 5.2.2), against a loop that is written from the paper's text."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.plan import Accumulate, Plan
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.planners.edge_rl.instances import BATCHES, by_speed, dealt_plan, gathering, instances_of
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

SLO_MS, HALF_MS = 300.0, 5.0


def one_instance(buffer: int) -> Deployment:
    """It takes 10 ms for a query, and 5 for each further one."""
    variant = Variant("v", 0.8, (LatencyProfile.linear(HALF_MS, HALF_MS, 5),))
    application = Application("app", round(SLO_MS * NS_PER_MS), (variant,))
    return Deployment((application,), workers(1), Quantile.MEAN)


def planned(deployment: Deployment, batch: tuple[int, int], as_published: bool) -> Plan:
    crew = instances_of(deployment)
    release = gathering(deployment, crew[0], batch, as_published)
    return dealt_plan(deployment, [crew], [by_speed(crew)], [[release]], planner="edge_rl", buffer=1000)


def ends_by_the_paper(arrival_ns: np.ndarray, smallest: int, largest: int) -> list[int]:
    """When a batch ends, fewer than the smallest wait: the instance waits until they are so many. At least the smallest
    but fewer than the largest: of the sizes 1, 3 and 5 the largest that is there. Else the largest. -1: waits for ever.
    """
    ends = [-1] * len(arrival_ns)
    free_ns, first = 0, 0
    while first + smallest <= len(arrival_ns):
        start_ns = max(free_ns, int(arrival_ns[first + smallest - 1]))
        there = int((arrival_ns <= start_ns).sum()) - first
        size = largest if there >= largest else max(each for each in (1, 3, 5) if each <= there)
        free_ns = start_ns + round((HALF_MS + HALF_MS * size) * NS_PER_MS)
        ends[first : first + size] = [free_ns] * size
        first += size
    return ends


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rate", [30.0, 90.0])
def test_the_rule_as_published(batch: tuple[int, int], rate: float) -> None:
    deployment = one_instance(1000)
    plan = planned(deployment, batch, as_published=True)
    result = simulate(deployment, lambda view: plan, Load(Poisson(), rate), seconds=20, seed=3, record=True)
    assert result.queries is not None
    expected = ends_by_the_paper(result.queries["arrival_ns"], *batch)
    is_there = [end for end in expected if end >= 0]
    assert len(is_there) > 500 and result.queries["end_ns"][: len(is_there)].tolist() == is_there


def test_ours_starts_a_head_that_would_be_late_otherwise() -> None:
    """Of a smallest batch of three, two have come: the first of them starts while a batch of five could still end."""
    deployment = one_instance(1000)
    crew = instances_of(deployment)
    ours, published = (gathering(deployment, crew[0], (3, 5), as_published) for as_published in (False, True))
    assert ours == Accumulate(3, round((SLO_MS - 6 * HALF_MS) * NS_PER_MS), 5)
    assert published.timeout_ns > 1000 * NS_PER_S and published.sizes == (1, 3, 5)


@pytest.mark.parametrize("sizes", [(3, 5), (1, 0), (1, 63)])
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, ...]) -> None:
    deployment = one_instance(1000)
    crew = instances_of(deployment)
    release = Accumulate(1, NS_PER_S, 5, sizes=sizes)
    plan = dealt_plan(deployment, [crew], [by_speed(crew)], [[release]], planner="edge_rl")
    with pytest.raises(PlanError, match="those are 1 and others up to 62"):
        simulate(deployment, lambda view: plan, Load(Poisson(), 10.0), seconds=1)
