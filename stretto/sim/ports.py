"""What the simulator offers to planners: trials of plans, and response latencies measured beforehand."""

from __future__ import annotations

from stretto.planners.ports import Ports
from stretto.sim.trial import run_trial


def simulator_ports() -> Ports:
    """For whoever makes a planner: the server (through its command line), scenarios and benchmarks."""
    return Ports(trial=run_trial)
