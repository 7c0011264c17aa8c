"""What a shared-queue policy may be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Law, Poisson

MAX_SLACK_STEPS = 2_000
MAX_QUEUE = 4096


@dataclass(frozen=True)
class Options:
    """`max_late` is the share of queries that may miss their deadline; the safety margin is chosen to keep it.

    `noise` is the coefficient of variation of service times, as a lognormal factor of the profile's latency. `margin`
    is a share of the slack that no batch may use, for what is not in the profile at all. `caution` is what the load is
    multiplied by; where it is 0 it is chosen by trial, to which `seed` and `queries` belong. `gathers` is for many
    workers: one may wait for company while the others go on (`gathering.py`). What serves by default is the planner's
    (`planner.py`): two sets of defaults would be one that nobody serves.
    """

    slack_steps: int
    max_late: float
    noise: float
    margin: float
    queries: int
    caution: float = 0.0
    seed: int = 1
    gathers: bool = False
    law: Law = field(default_factory=Poisson)

    def __post_init__(self) -> None:
        if not 10 <= self.slack_steps <= MAX_SLACK_STEPS:
            raise StrettoError(f"slack is cut into 10 to {MAX_SLACK_STEPS} steps, not {self.slack_steps}")
        if not 0 < self.max_late < 1:
            raise StrettoError(f"the share of queries that may be late is between 0 and 1, not {self.max_late}")
        if not 0 <= self.noise <= 1:
            raise StrettoError(f"the noise of service times is between 0 and 1 of their mean, not {self.noise}")
        if not 0 <= self.margin < 1:
            raise StrettoError(f"the margin is a share of the slack from 0 to below 1, not {self.margin}")
        if self.caution != 0 and not 0.1 <= self.caution <= 10:
            raise StrettoError(f"the load is multiplied by a caution of 0.1 to 10, or 0: by trial, not {self.caution}")
        if not 1_000 <= self.queries <= 100_000_000:
            raise StrettoError(f"a policy is tried on 1,000 to 100,000,000 queries, not {self.queries}")

    def described(self) -> dict[str, str]:
        """What a file of policies says of them; equal descriptions give equal policies."""
        return {
            "policy": "shared queue",
            "slack steps": str(self.slack_steps),
            "late at most": repr(self.max_late),
            "noise": repr(self.noise),
            "margin": repr(self.margin),
            "caution": repr(self.caution),
            "tried on": f"{self.queries} queries, seed {self.seed}",
            "waits": "one worker" if self.gathers else "all workers",
            "arrivals": self.law.name,
        }
