"""Candidates, promises and verdicts: what might be served, what it is expected to give, and what the judge found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

OptionValue = bool | int | float
GivenValue = OptionValue | str  # an option may also name a file


@dataclass(frozen=True)
class Candidate:
    """A planner with options, by name; `variants` by application where it is to have one variant for each."""

    planner: str
    options: tuple[tuple[str, OptionValue], ...] = ()
    variants: tuple[tuple[str, str], ...] = ()
    tail: float = 1.0  # of measured run times, that it reckons with: 0 is their mean, 1 the quantile for decisions

    def with_option(self, name: str, value: OptionValue) -> Candidate:
        return replace(self, options=tuple({**dict(self.options), name: value}.items()))

    def left_with(self, applications: Collection[str]) -> Candidate:
        """Without what it says of others than these."""
        return replace(self, variants=tuple(each for each in self.variants if each[0] in applications))

    def __str__(self) -> str:
        words = [f"{name} {value:g}" for name, value in self.options]
        words += [variant for _, variant in self.variants]
        words += [f"tail {self.tail:g}"] if self.tail < 1 else []
        return f"{self.planner} ({', '.join(words)})" if words else self.planner


@dataclass(frozen=True)
class Promise:
    """What a candidate is expected to give: means over trials. Errors are standard deviations: by so much a stretch as
    long as a trial differs from them.
    """

    correct: float  # share of queries answered right and on time
    late: float  # share without an answer on time
    correct_error: float = 0.0
    late_error: float = 0.0

    @property
    def accuracy(self) -> float:
        """Of answers on time."""
        return self.correct / (1.0 - self.late) if self.late < 1 else 0.0


@dataclass(frozen=True)
class Verdict:
    """The best candidate for a load, and by how much it won (with the standard error of that) over the next one."""

    rates: tuple[float, ...]
    candidate: Candidate
    promise: Promise
    runner_up: Candidate
    ahead: float = 0.0
    ahead_error: float = 0.0
    tried: int = 0
    cpu_s: float = 0.0
    plan_cpu_s: float = 0.0  # of that, for making plans
    stressed: float = 0.0  # share answered right and on time, less the price of lateness: the mean under stress
    levels: tuple[float, float] = (1.0, 1.0)  # times its rates: between them a load moved that it was tried on whole
    lump: float = 1.0  # queries that came together: times the variance of a count of single ones
    ratios: tuple[tuple[float, ...], ...] = ()  # [variant][kind]: measured over profiled latency, as it was tried with
