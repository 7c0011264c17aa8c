"""One port to the policies for several planners: each is given those that it asked for, known by their options."""

from __future__ import annotations

from typing import Any

from stretto.planners.parts.task import Task
from stretto.planners.ports import MadePolicy, MakePolicy, PolicyPort


class Desk:
    def __init__(self, port: PolicyPort | None) -> None:
        self._port = port
        self._made: dict[Any, list[MadePolicy]] = {}

    def port(self) -> PolicyPort:
        return _Counter(self)

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        assert self._port is not None
        self._made.setdefault(options, [])
        self._port.ask(task, options, load, make)

    def take(self, options: Any) -> list[MadePolicy]:
        for made in () if self._port is None else self._port.collect():
            self._made.setdefault(made.options, []).append(made)
        return self._made.pop(options, [])


class _Counter:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._options: set[Any] = set()

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        self._options.add(options)
        self._desk.ask(task, options, load, make)

    def collect(self) -> list[MadePolicy]:
        return [made for options in self._options for made in self._desk.take(options)]
