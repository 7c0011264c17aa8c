"""[autoscale]: workers that come and go with the load."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stretto.config.fields import Fields, suggestion
from stretto.core.deployment import MAX_WORKERS, Deployment
from stretto.live.scaling_options import BY, JUDGE, SIGNALS
from stretto.planning.autoscale_options import MAX_COST, AutoscaleOptions, Bounds

MAX_SECONDS = 86_400.0
NUMBERS = ("bad_rate", "room", "slack", "smoothing", "near", "growth", "shrink")  # as AutoscaleOptions has them


@dataclass(frozen=True)
class ScenarioScaling:
    """`accuracy`: of answers, which workers are kept for besides deadlines. `judge_s`: how long the judge takes to name
    a fleet, where it is followed.
    """

    options: AutoscaleOptions
    accuracy: float | None = None
    judge_s: float | None = None


def read_autoscale(top: Fields, deployment: Deployment) -> ScenarioScaling | None:
    part = top.part("autoscale")
    if part is None:
        return None
    kinds = _kinds(part, deployment)
    period_s = part.number("period_seconds", 0.01, MAX_SECONDS, 10.0)
    start_s = part.number("start_seconds", 0, MAX_SECONDS, 0.0)
    accuracy = part.optional_number("accuracy", 0, 1, above=True)
    by = part.choice("by", BY, SIGNALS)
    judge_s = part.number("judge_seconds", 0, MAX_SECONDS, 30.0)
    given = {name: part.number(name, 0, 1000) for name in NUMBERS if part.has(name)}
    if part.has("calm_periods"):
        given["calm_periods"] = part.integer("calm_periods", 1, 1000)
    part.done(("min", "max", "cost"))
    with part.at():
        options = AutoscaleOptions(kinds, period_s, start_s, **given)  # type: ignore[arg-type]
        return ScenarioScaling(options, accuracy, judge_s if by == JUDGE else None)


def _kinds(part: Fields, deployment: Deployment) -> dict[str, Bounds]:
    """By kind under [autoscale.kind.NAME], or of the only one."""
    tables = part.part("kind")
    if tables is None:
        if len(deployment.kinds) > 1:
            part.fail(f"workers are of kind {' and '.join(deployment.kinds)}; give bounds in [autoscale.kind.NAME]")
        return {deployment.kinds[0]: _bounds(part)}
    kinds: dict[str, Bounds] = {}
    for name in tables.table:
        if name not in deployment.kinds:
            tables.fail(f"no worker is of kind {name}; {suggestion(name, deployment.kinds)}", name)
        table = tables.part(name)
        assert table is not None
        kinds[name] = _bounds(table)
        table.done()
    return kinds


def _bounds(table: Fields) -> Bounds:
    with table.at():
        return Bounds(
            table.integer("min", 0, MAX_WORKERS, 1),
            table.integer("max", 1, MAX_WORKERS),
            table.number("cost", 0, MAX_COST, 1.0, above=True),
        )


assert set(NUMBERS) <= {each.name for each in fields(AutoscaleOptions)}
