"""Plans and deployments as plain data: what was written is read again, and nothing else is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.estimates import Estimates
from stretto.core.plain import from_plain, to_plain
from stretto.core.plan import Fixed, Lane, Late, Plan, Route, RouteRule, Table, by_application
from stretto.core.profile import Quantile
from tests.dispatch.plans import deployments, plans
from tests.dispatch.small import deployed, lane


def same(one: Any, other: Any) -> bool:
    """Equal in value and type all the way down; deployments and tables have no == of their own."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return bool(one == other)


def through_json(value: Any) -> Any:
    """Written by the server's encoder, read by the standard one."""
    return from_plain(json.loads(orjson.dumps(to_plain(value))))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_every_plan_and_deployment_comes_back(data: st.DataObject) -> None:
    deployment = data.draw(deployments())
    plan = data.draw(plans(deployment, [(7, 0), (2**40, 0)]))
    assert same(through_json(deployment), deployment)
    assert same(through_json(plan), plan)


def test_demands_and_penalties_come_back() -> None:
    plan = Plan((lane("a"), lane("b")), (Route(RouteRule.BY_APPLICATION, (0,), demands=(1,)),))
    assert same(through_json(plan), plan)
    deployment = Deployment(deployed().applications, deployed().workers, Quantile.P99)
    assert through_json(deployment).quantile is Quantile.P99
    assert isinstance(through_json(plan).lanes[0].late, Late)


def test_numbers_without_end() -> None:
    """The encoder writes them as nothing at all, so they are spelled out."""
    rates = (0.0, 1.5, math.inf, -math.inf)
    made = through_json(by_application((lane(late=Late.DROP_WHEN_INFEASIBLE, floor_rates=rates),)))
    assert made.lanes[0].release.floor_rates == rates
    assert math.isnan(through_json((math.nan,))[0])


def test_numpy_s_own_numbers_become_plain_ones() -> None:
    """Planners compute with numpy, and a plan may hold its scalars."""
    variant: Any = np.int32(3)
    made = through_json(lane(capacity=np.int64(7), select=Fixed(variant), floor_rates=(np.float64(0.25),)))
    assert (made.capacity, made.select, made.release.floor_rates) == (7, Fixed(3), (0.25,))
    assert type(made.capacity) is int and type(made.release.floor_rates[0]) is float
    assert to_plain(np.bool_(True)) is True and to_plain(np.float32(0.5)) == 0.5


@dataclass
class Other:
    value: int = 1


Namesake = dataclass(type("Plan", (), {"__annotations__": {"value": int}, "value": 1}))


@pytest.mark.parametrize("value", [Other(), Namesake(), {"a": 1}, object(), b"bytes", {1, 2}])
def test_other_types_are_not_written(value: Any) -> None:
    with pytest.raises(StrettoError, match="cannot be written as plain data"):
        to_plain((1, value))


GOOD_ARRAY = {"array": "int64", "shape": [2], "data": "AAAAAAAAAAAAAAAAAAAAAA=="}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"type": "Other", "value": 1},
        {"type": "Path"},
        {"type": ["Plan"]},
        {"type": "Plan"},
        {"type": "Plan", "lanes": [], "routes": [], "wheels": 4},
        {"type": "Fixed"},
        {"type": "Deployment", "applications": [1], "workers": [2]},
        {"type": "Variant", "name": 5, "accuracy": 0.5, "profiles": []},
        {"type": "Application", "name": "a", "slo_ns": "soon", "variants": []},
        {"enum": "Late", "value": 99},
        {"enum": "Colour", "value": 1},
        {"enum": "Late"},
        {"float": "much"},
        {"float": [1]},
        GOOD_ARRAY | {"array": "object"},
        GOOD_ARRAY | {"array": "float32"},
        GOOD_ARRAY | {"shape": [3]},
        GOOD_ARRAY | {"shape": "x"},
        GOOD_ARRAY | {"data": "not base64!"},
        GOOD_ARRAY | {"data": 5},
        {"type": "LatencyProfile", "table_ns": {"array": "float64", "shape": [0], "data": ""}},
    ],
)
def test_what_nobody_wrote_is_refused(value: Any) -> None:
    with pytest.raises(StrettoError):
        from_plain([value])
    assert from_plain(GOOD_ARRAY).tolist() == [0, 0]


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "enum", "array", "value", "lanes", "workers", "name"]), inner)
            | st.fixed_dictionaries({"type": st.sampled_from(["Plan", "Lane", "Deployment", "Worker", "Table"])})
        ),
        max_leaves=8,
    )
)
def test_nonsense_is_refused_in_one_way(value: Any) -> None:
    try:
        from_plain(value)
    except StrettoError as error:
        assert str(error)


def test_tables_keep_their_cells() -> None:
    cells = np.arange(6, dtype=np.int32).reshape(2, 3)
    made = through_json(Lane("a", (0,), Table(5, cells, cells[::-1], "quick")))
    np.testing.assert_array_equal(made.select.variant, cells)
    np.testing.assert_array_equal(made.select.batch, cells[::-1])
    assert made.select.variant.dtype == np.int32
    assert made.select.variants == (0, 1, 2, 3, 4, 5)
    np.testing.assert_array_equal(made.select.cells["batch"], cells[::-1].ravel())


def test_estimates_keep_every_array() -> None:
    counts, shares = np.arange(8, dtype=np.int64).reshape(2, 4), np.array([0.5, np.inf])
    arrays = {"counting": counts, "arrivals": counts, "profiled": counts, "runs": counts}
    shares_by_name = {"rates": shares, "caps": shares, "ratio": shares, "written": shares}
    wrote = Estimates(7, ("a",), ("b",), variants=("a/v",), kinds=("k",), **arrays, **shares_by_name)
    made = through_json(wrote)
    for field in fields(Estimates):
        np.testing.assert_array_equal(getattr(made, field.name), getattr(wrote, field.name))
