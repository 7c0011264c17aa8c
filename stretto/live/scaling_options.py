"""How a server's fleet is scaled: between which bounds, for what, and who acts on it. Loads nothing that serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stretto.core.errors import StrettoError
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds

ADVICE, LOCAL, WEBHOOK = "advice", "local", "webhook"
ACTUATORS = (ADVICE, LOCAL, WEBHOOK)
MOST_LIVE = 1024
BY = SIGNALS, JUDGE = "signals", "judge"  # whose number is followed


@dataclass(frozen=True)
class ScalingOptions:
    """`bounds` by kind of worker, or by the beginning of its name; by nothing where there is one kind only. `options`
    has everything else of the autoscaler; its own kinds are not looked at.
    """

    bounds: tuple[tuple[str, Bounds], ...]
    actuator: str = LOCAL
    webhook: str = ""
    token: str = ""
    accuracy: float | None = None  # of answers; else whatever the planner gives within deadlines
    options: AutoscaleOptions = field(default_factory=AutoscaleOptions)
    follows_judge: bool = False  # the judge's fleet goes before the signals, where it has one for the load

    def __post_init__(self) -> None:
        if self.actuator not in ACTUATORS:
            raise StrettoError(f"there is no actuator {self.actuator[:40]!r}; there are {', '.join(ACTUATORS)}")
        if (self.actuator == WEBHOOK) != bool(self.webhook):
            raise StrettoError("the actuator webhook needs an address (--autoscale-webhook), and no other takes one")
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise StrettoError(f"autoscaling is for an accuracy of {self.accuracy:g}; it must be above 0 and at most 1")
        if self.webhook:
            from stretto.live.webhook import Webhook

            Webhook(self.webhook, self.token)  # refused here where it cannot be
        if not self.bounds or any(bounds.most > MOST_LIVE for _, bounds in self.bounds):
            raise StrettoError(f"autoscaling needs its bounds, as --autoscale 1:8, of at most {MOST_LIVE} workers")

    def for_kinds(self, kinds: Sequence[str]) -> AutoscaleOptions:
        """With bounds by whole names. StrettoError where a name fits none, or several."""
        by_kind: dict[str, Bounds] = {}
        for name, bounds in self.bounds:
            fitting = [kind for kind in kinds if kind == name] or [kind for kind in kinds if kind.startswith(name)]
            if len(fitting) != 1 or fitting[0] in by_kind:
                mend = f"{name[:80]!r} is not one of them" if name else "say which one, as --autoscale KIND=1:8"
                raise StrettoError(f"workers here are of kind {' and '.join(kinds)}; {mend}")
            by_kind[fitting[0]] = bounds
        return replace(self.options, kinds=by_kind)


def read_bounds(text: str) -> tuple[str, Bounds]:
    """[KIND=]MIN:MAX[@COST], as 1:8 or cpu=0:4@0.1 (an hour)."""
    name, equals, rest = text.rpartition("=")
    numbers, at, cost = rest.partition("@")
    least, colon, most = numbers.partition(":")
    is_whole = all(part.isascii() and part.isdigit() and len(part) <= 5 for part in (least, most))
    try:
        price = float(cost) if at else 1.0
    except ValueError:
        price = math.nan
    if not colon or not is_whole or not math.isfinite(price) or (equals and not name):
        raise StrettoError(f"autoscaling is from MIN to MAX workers, as 1:8 or KIND=1:8, not {text[:60]!r}")
    return name, Bounds(int(least), int(most), price)
