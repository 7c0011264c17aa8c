"""A port that notes what is asked of it and hands over what a test gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.planners.parts.policy import Policy
from stretto.planners.parts.task import Task
from stretto.planners.ports import MadePolicy, MakePolicy


@dataclass
class HandPort:
    asked: list[tuple[Task, float]] = field(default_factory=list)
    ready: list[MadePolicy] = field(default_factory=list)

    @property
    def loads(self) -> list[float]:
        return [load for _, load in self.asked]

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        self.asked.append((task, load))
        self.options = options  # that were asked for last

    def collect(self) -> Sequence[MadePolicy]:
        ready, self.ready = self.ready, []
        return ready

    def deliver(self, task: Task, load: float, policy: Policy | None) -> None:
        self.ready.append(MadePolicy(task, load, policy, self.options))
