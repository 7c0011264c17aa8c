"""The executors by name."""

from __future__ import annotations

from stretto.live.crew import Factory
from stretto.live.threads import ThreadExecutor


def executor_factory(name: str) -> Factory:
    """What makes the worker of each number."""
    if name == "process":
        from stretto.live.processes import ProcessExecutor

        return ProcessExecutor
    return ThreadExecutor
