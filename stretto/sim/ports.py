"""What the simulator offers to planners: trials of plans, and response latencies measured beforehand.

The simulator is loaded when it is first asked: a server that needs neither does without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stretto.planners.ports import Ports, Seen, TrialConditions

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment
    from stretto.core.plan import Plan
    from stretto.planners.parts.responses import Responses


def trial(deployment: Deployment, plan: Plan, conditions: TrialConditions) -> Seen:
    """A planner's Trial; by its name, so that it can be handed to another process."""
    from stretto.sim.trial import simulated_trial

    return simulated_trial(deployment, plan, conditions)


def responses(deployment: Deployment, rates: Sequence[float] | None) -> Mapping[str, Responses]:
    """Response latencies at many loads, by application."""
    from stretto.sim.responses import measured_responses

    return measured_responses(deployment, rates=rates)


def simulator_ports() -> Ports:
    """For whoever makes a planner: the server (through its command line), scenarios and benchmarks."""
    return Ports(trial=trial, responses=responses)
