"""The executors by name."""

from __future__ import annotations

from stretto.live.crew import Factory
from stretto.live.threads import ThreadExecutor


def executor_factory(in_processes: bool) -> Factory:
    """What makes the worker of each number."""
    if in_processes:
        from stretto.live.processes import ProcessExecutor

        return ProcessExecutor
    return ThreadExecutor
