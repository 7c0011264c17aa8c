"""The choices that section 4 leaves to the user, and those that it leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Law, Poisson

MAX_SLACK_STEPS = 10_000
MAX_QUEUE = 512


@dataclass(frozen=True)
class Options:
    """`slack_steps` is D of section 4.2.2; 0 asks for model-based discretisation (section 4.2.1).

    The reward Accuracy · SLOSatisfied of section 4.1 is averaged over queries: the share answered right and on time.
    `per_decision` is as printed, where each decision epoch counts once, waiting at an empty queue included.
    """

    slack_steps: int = 100
    max_queue: int = 32  # N_w
    variable: bool = False  # any number of the queued queries is a batch, not only all of them (section 4.3.2)
    drop: bool = False  # a head that cannot make it is dropped; else the fastest variant serves all (section 4.3.1)
    shortest: bool = False  # queries go to the shortest queue (appendix I), not in turn (section 4.4)
    per_decision: bool = False
    every_batch: bool = False  # keep variants that are unbeaten at some batch size, not only at one query (4.3.3)
    tolerance: float = 1e-6  # of the objective, which is a fraction
    law: Law = field(default_factory=Poisson)

    def __post_init__(self) -> None:
        if not 0 <= self.slack_steps <= MAX_SLACK_STEPS:
            raise StrettoError(f"slack is cut into 1 to {MAX_SLACK_STEPS} steps (0: by model), not {self.slack_steps}")
        if not 1 <= self.max_queue <= MAX_QUEUE:
            raise StrettoError(f"a policy looks at 1 to {MAX_QUEUE} queued queries, not {self.max_queue}")
        if not 1e-12 <= self.tolerance <= 0.01:
            raise StrettoError(f"the tolerance of a policy is between 1e-12 and 0.01, not {self.tolerance}")

    def described(self) -> dict[str, str]:
        """What a file of policies says of them; equal descriptions give equal policies."""
        return {
            "slack steps": str(self.slack_steps) if self.slack_steps else "by model",
            "longest queue": str(self.max_queue),
            "batching": "variable" if self.variable else "maximal",
            "late queries": "drop" if self.drop else "serve",
            "balancing": "shortest" if self.shortest else "round_robin",
            "objective": "per decision" if self.per_decision else "per query",
            "pruning": "every_batch" if self.every_batch else "one_query",
            "tolerance": repr(self.tolerance),
            "arrivals": self.law.name,
        }
