"""What the simulator offers to planners: trials of plans, and response latencies measured beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.core.deployment import Deployment
from stretto.planners.model_switching import Responses
from stretto.planners.ports import Ports
from stretto.sim.responses import measured_responses
from stretto.sim.trial import simulated_trial


def responses_of(deployment: Deployment, rates: Sequence[float] | None) -> Mapping[str, Responses]:
    return measured_responses(deployment, rates=rates)


def simulator_ports() -> Ports:
    """For whoever makes a planner: the server (through its command line), scenarios and benchmarks."""
    return Ports(trial=simulated_trial, responses=responses_of)
