"""Deployments and plans as plain data, for JSON and back. Only the nouns of core are known."""

from __future__ import annotations

import base64
import math
from dataclasses import fields
from enum import IntEnum
from typing import Any

import numpy as np

from stretto.core import (
    application,
    client,
    conditions,
    deployment,
    estimates,
    plan,
    profile,
    telemetry,
    verdict,
    view,
    worker,
)
from stretto.core.errors import StrettoError

TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(application.Application, application.Variant, deployment.Deployment, worker.Worker, profile.LatencyProfile),
        *(plan.Fixed, plan.ByLoad, plan.MostAccurate, plan.Table, plan.Tables, plan.Strategies),
        *(plan.Work, plan.Worklist),
        *(
            conditions.Conditions,
            conditions.Demand,
            telemetry.Telemetry,
            view.WaitingQuery,
            view.Lines,
            estimates.Estimates,
        ),
        *(client.Client, client.Network, client.Told),
        *(verdict.Candidate, verdict.Promise, verdict.Verdict),
        *(plan.Eager, plan.Accumulate, plan.Deferred, plan.AdaptiveCap, plan.Delays, plan.Crowd, plan.Lane, plan.Route),
        plan.Plan,
    )
}
ENUMS: dict[str, type[IntEnum]] = {
    kind.__name__: kind
    for kind in (
        *(application.Penalty, profile.Quantile, plan.RouteRule, plan.Order, plan.Late, plan.Missing),
        *(plan.WorkerChoice, plan.LaneChoice),
    )
}
DTYPES = ("int32", "int64", "float64", "bool")


def to_plain(value: Any) -> Any:
    """Numbers, strings, lists and objects that JSON can hold."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):  # numpy's too
        return float(value) if math.isfinite(value) else {"float": str(float(value))}  # JSON has no word for those
    if isinstance(value, IntEnum):
        return {"enum": type(value).__name__, "value": int(value)}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return to_plain(value.item())
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": value.dtype.name, "shape": list(value.shape), "data": data}
    name = type(value).__name__
    if TYPES.get(name) is type(value):
        held = {field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.init}
        return {"type": name, **held}
    raise StrettoError(f"a {name} cannot be written as plain data")


def from_plain(value: Any) -> Any:
    """What `to_plain` wrote; StrettoError where it is something else."""
    if isinstance(value, list):
        return tuple(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    try:
        if "float" in value:
            return float(value["float"])
        if "enum" in value:
            return ENUMS[value["enum"]](value["value"])
        if "array" in value:
            if value["array"] not in DTYPES:
                raise StrettoError(f"an array of {str(value['array'])[:20]} is not known")
            data = np.frombuffer(base64.b64decode(value["data"], validate=True), value["array"])
            return data.reshape(value["shape"])
        kind = TYPES[value["type"]]
        return kind(**{name: from_plain(item) for name, item in value.items() if name != "type"})
    except StrettoError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StrettoError(f"this is no plan or deployment that Stretto wrote ({type(error).__name__})") from None
