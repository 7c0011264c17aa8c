"""What a registry says of a planner: its name, its options, and how it is made.

Options come in the units of the edge: one that ends in _ms becomes the planner's field that ends in _ns. An option that
is not given keeps the planner's own default. Planners are imported when they are made, so that names come cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from stretto.core.errors import StrettoError
from stretto.core.verdict import GivenValue, OptionValue

if TYPE_CHECKING:
    from stretto.core.view import Planner
    from stretto.planners.ports import Ports

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Option:
    """One option of a planner, with the bounds of a number."""

    name: str
    kind: Literal["flag", "integer", "number", "file", "choice"]
    default: str  # in words, for people
    what: str
    low: float = 0
    high: float = 0
    tries: tuple[OptionValue, ...] = ()  # values that are worth trying
    later: tuple[OptionValue, ...] = ()  # values that are worth trying with what turned out best
    rough: OptionValue | None = None  # makes plans quicker, and is near enough to compare them by at first
    if_steady: bool = False  # what is tried pays only where the load stays
    if_moving: tuple[OptionValue, ...] = ()  # values that are worth trying where it does not
    choices: tuple[str, ...] = ()  # words, of which a choice is one


DATA_AWARE = Option("data_aware", "flag", "false", "expect accuracy from the evidence of each query's class")


@dataclass(frozen=True)
class Entry:
    """A name, what stands behind it, and how it is made."""

    name: str
    what: str
    where: str  # MODULE:FACTORY, within stretto.planners
    options: tuple[Option, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=dict)
    replan_s: float | None = None
    chooses_variants: bool = False  # among all of an application, so that none can be named
    by_windows: bool = False  # queries wait for the next plan, so SLOs bound how long that may take
    ports: tuple[str, ...] = ()  # which of the Ports it takes, by name
    tried: Literal[
        "",
        "always",
        "with one kind of worker",
        "if unequal",
        "with several kinds of worker",
        "where memory is short",
        "where variants are swapped",
        "with one variant each",
        "where it may gain",
        "where clients are known",
    ] = ""  # as a candidate, by the judge

    def make(
        self,
        options: Mapping[str, GivenValue] | None = None,
        variants: Mapping[str, str] | None = None,
        ports: Ports | None = None,
    ) -> Planner:
        """The planner, with its own defaults for what `options` leave out.

        `variants` names the variant of an application. Of `ports` it gets those that it takes.
        """
        fields: dict[str, Any] = dict(self.preset)
        known = [option.name for option in self.options]
        given = dict(options or {})
        is_wrapped = not self.by_windows and DATA_AWARE in self.options and bool(given.pop(DATA_AWARE.name, False))
        for name, value in given.items():
            if name not in known:
                raise StrettoError(
                    f"planner {self.name} has no option {name[:40]}; it has {', '.join(known) or 'none'}"
                )
            if name.endswith("_ms") and not isinstance(value, str):
                fields[name.removesuffix("_ms") + "_ns"] = round(value * NS_PER_MS)
            else:
                fields[name] = value
        if variants and self.chooses_variants:
            raise StrettoError(f"planner {self.name} chooses among all variants; name none, or take another planner")
        if variants:
            fields["variants"] = dict(variants)
        if ports is not None:
            fields |= {name: getattr(ports, name) for name in self.ports}
        module, _, factory = self.where.partition(":")
        planner: Planner = getattr(import_module(f"stretto.planners.{module}"), factory)(**fields)
        return _data_aware(planner) if is_wrapped else planner


def _data_aware(planner: Planner) -> Planner:
    """The planner with accuracies by what evidence says of a query's class, unless it looks at evidence itself."""
    from stretto.planners.data_aware import DataAware
    from stretto.planners.ports import LooksAtEvidence

    return planner if isinstance(planner, LooksAtEvidence) and planner.looks_at_evidence else DataAware(planner)


def with_data_aware(entry: Entry) -> Entry:
    """The entry with the option that every planner has. One that schedules windows takes it itself, query by query, and
    one that judges candidates tries them with and without it.
    """
    if entry.by_windows or "judge" in entry.ports:
        return entry
    return replace(entry, options=(*entry.options, DATA_AWARE))


def following(name: str, what: str, where: str, *options: Option, replan_s: float | None = 0.1, **rest: Any) -> Entry:
    """A planner that chooses among all variants, and follows the load."""
    return Entry(name, what, where, options, replan_s=replan_s, chooses_variants=True, **rest)
