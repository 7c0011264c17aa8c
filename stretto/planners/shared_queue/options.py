"""What a shared-queue policy may be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Law, Poisson

MAX_SLACK_STEPS = 2_000
MAX_QUEUE = 512


@dataclass(frozen=True)
class Options:
    """`max_late` is the share of queries that may miss their deadline; the safety margin is chosen to keep it.

    `noise` is the coefficient of variation of service times, as a lognormal factor of the profile's latency. `margin`
    is a share of the slack that no batch may use, for what is not in the profile at all. `seed` and `queries` belong to
    the evaluation on K workers that the rise of load is chosen by and the expectation comes from.
    """

    slack_steps: int = 150
    max_late: float = 0.0005
    noise: float = 0.0
    margin: float = 0.0
    tolerance: float = 1e-5  # of accuracy, in the value of a policy
    queries: int = 200_000
    seed: int = 1
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
        if not 1e-9 <= self.tolerance <= 0.01:
            raise StrettoError(f"the tolerance of a policy is between 1e-9 and 0.01, not {self.tolerance}")
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
            "tolerance": repr(self.tolerance),
            "tried on": f"{self.queries} queries, seed {self.seed}",
            "arrivals": self.law.name,
        }
