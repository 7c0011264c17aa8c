"""The choices that section 4 leaves to the user, and those that it leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Law, Poisson

MAX_SLACK_STEPS = 10_000
MAX_QUEUE = 512


class Batching(IntEnum):
    """Section 4.3.2."""

    MAXIMAL = 0  # all that are queued
    VARIABLE = 1  # any number of them


class LateRule(IntEnum):
    """Section 4.3.1: what happens to a head that no variant can answer in time."""

    SERVE = 0  # everything queued goes to the fastest variant
    DROP = 1  # the head is dropped; a batch is cut to what fits


class Balancing(IntEnum):
    """How queries are dealt to workers: section 4.4 and appendix I."""

    ROUND_ROBIN = 0
    SHORTEST = 1


class Objective(IntEnum):
    """What the reward Accuracy · SLOSatisfied of section 4.1 is given for, and averaged over, in the long run."""

    QUERY = 0  # the share of queries answered right and on time: each query of a batch counts
    DECISION = 1  # as printed: each decision epoch counts once, waiting at an empty queue included


class Pruning(IntEnum):
    """Section 4.3.3: which variants are not considered."""

    ONE_QUERY = 0  # those beaten in accuracy and in the latency of a single query: the Pareto front of figure 3
    EVERY_BATCH = 1  # those beaten in accuracy and at every batch size; keeps what batches better than its betters
    NONE = 2


@dataclass(frozen=True)
class Options:
    """`slack_steps` is D of section 4.2.2; 0 asks for model-based discretisation (section 4.2.1)."""

    slack_steps: int = 100
    max_queue: int = 32  # N_w
    batching: Batching = Batching.MAXIMAL
    late: LateRule = LateRule.SERVE
    balancing: Balancing = Balancing.ROUND_ROBIN
    objective: Objective = Objective.QUERY
    pruning: Pruning = Pruning.ONE_QUERY
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
            "batching": self.batching.name.lower(),
            "late queries": self.late.name.lower(),
            "balancing": self.balancing.name.lower(),
            "objective": f"per {self.objective.name.lower()}",
            "pruning": self.pruning.name.lower(),
            "tolerance": repr(self.tolerance),
            "arrivals": self.law.name,
        }
