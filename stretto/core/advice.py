"""What an autoscaler says of one control period: how many workers of each kind there should be, and from what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Advice:
    """Counts by kind of worker. `reason` is one of a few sentences for an operator."""

    now_ns: int
    wanted: Mapping[str, int]
    present: Mapping[str, int]
    bad_rate: float = 0.0  # of the period: share of queries without an answer on time
    idle_share: float = 0.0  # of the period: worker time in which nothing ran
    cost: float = 0.0  # of what is wanted, an hour
    reason: str = "nothing was measured yet"

    @property
    def starting(self) -> dict[str, int]:
        """Wanted, and not there yet."""
        return {kind: max(0, count - self.present.get(kind, 0)) for kind, count in self.wanted.items()}


@dataclass(frozen=True)
class FleetNeeds:
    """What the judge looks for a fleet by: prices an hour and bounds, by kind, and what its plan must promise."""

    costs: Mapping[str, float]
    bounds: Mapping[str, tuple[int, int]]
    late: float  # share of queries without an answer on time, at most
    accuracy: float = 0.0  # of answers, at least
    above: float = 0.0  # of the load, that the fleet must carry on top of it


@dataclass(frozen=True)
class JudgedFleet:
    """The cheapest workers whose judged plan promises what is needed, at the load that was measured."""

    wanted: Mapping[str, int]
    cost: float  # an hour
    load: float  # queries/s that it is for
    late: float  # as it is promised
    accuracy: float | None  # None where nobody knows that of a variant
    candidate: str
    is_enough: bool = True  # False: more would be needed, and the bounds do not allow them
    now_ns: int = 0  # when it was known


@dataclass(frozen=True)
class Scaling:
    """Autoscaling as an operator sees it: the latest advice, who acts on it, and how that went."""

    advice: Advice
    actuator: str  # advice: nobody acts
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # fewest and most, by kind
    changes: int = 0  # times that another number of workers was wanted
    failures: int = 0  # times that the actuator could not do it
    problem: str = ""  # of the last failure, while it lasts
    judged: JudgedFleet | None = None  # None: the judge is not asked, or has not answered yet
