"""A planner of the user's own, named as MODULE:ATTRIBUTE; modules in the current folder are found.

The attribute is the planner itself, a callable from a View to a Plan; or a class or function without required
parameters, which is called for one. The planner may have an attribute `replan_s`: how often it is asked, in seconds.

Its code is not ours: whatever it raises, and a plan that nobody could follow, becomes a sentence that names it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from stretto.core.check import check_plan
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.view import Planner, View
from stretto.planners.ports import HasRhythm, KnowsNetworks, LooksAtEvidence

LEAST_REPLAN_S, LONGEST_REPLAN_S = 0.001, 7 * 86_400.0
LONGEST_REASON = 500  # characters


class UserPlanner:
    """Passes views on, and sees to it that plans come back."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self._planner = _made(reference)
        self.replan_s = self._replan_s()

    @property
    def looks_at_evidence(self) -> bool:
        return isinstance(self._planner, LooksAtEvidence) and self._planner.looks_at_evidence

    @property
    def knows_networks(self) -> bool:
        return isinstance(self._planner, KnowsNetworks) and self._planner.knows_networks

    def __call__(self, view: View) -> Plan:
        try:
            plan: object = self._planner(view)
            if isinstance(plan, Plan):
                check_plan(plan, view.deployment)
        except (Exception, SystemExit) as error:
            raise StrettoError(f"planner {self.reference} failed: {_in_words(error)}") from error
        if not isinstance(plan, Plan):
            raise StrettoError(f"planner {self.reference} returned {_kind(plan)} and no Plan")
        return plan

    def _replan_s(self) -> float | None:
        if not isinstance(self._planner, HasRhythm) or self._planner.replan_s is None:
            return None
        value: object = self._planner.replan_s
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not LEAST_REPLAN_S <= value <= LONGEST_REPLAN_S:
            raise StrettoError(
                f"replan_s of planner {self.reference} is how often it is asked, each millisecond to each week; or None"
            )
        return float(value)


def rhythm_of(reference: str) -> float | None:
    """How often it wants to be asked. It is made for that, once: to make one may take long."""
    target = _named(reference)
    return _rhythm(reference, target) if isinstance(target, Hashable) else UserPlanner(reference).replan_s


@lru_cache(maxsize=16)
def _rhythm(reference: str, _: Hashable) -> float | None:
    return UserPlanner(reference).replan_s


def _made(reference: str) -> Planner:
    target = _named(reference)
    if not callable(target):
        raise StrettoError(f"{reference} is {_kind(target)}, which cannot be called; a planner is called with a View")
    if inspect.isclass(target) and not _needs_nothing(target):
        raise StrettoError(f"class {reference} needs arguments; name a function that makes the planner")
    try:
        planner: Any = target() if _needs_nothing(target) else target
    except (Exception, SystemExit) as error:
        raise StrettoError(f"{reference} made no planner: {_in_words(error)}") from error
    if not callable(planner):
        raise StrettoError(
            f"{reference} gave {_kind(planner)}, which cannot be called; a planner is called with a View"
        )
    return planner  # type: ignore[no-any-return]


def _named(reference: str) -> Any:
    """What the reference names."""
    name, _, attribute = reference.partition(":")
    if not name or not attribute:
        raise StrettoError(f"a planner of your own is named as MODULE:ATTRIBUTE, not {reference[:80]!r}")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    try:
        named: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's own module raises
        if isinstance(error, ModuleNotFoundError) and error.name and (name + ".").startswith(error.name + "."):
            raise StrettoError(f"there is no module {error.name[:80]!r}, here or installed, for a planner") from None
        raise StrettoError(f"module {name[:80]!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(named, part):
            raise StrettoError(f"module {name[:80]!r} has no {attribute[:80]!r}")
        named = getattr(named, part)
    return named


def _needs_nothing(function: Any) -> bool:
    """Whether it can be called without arguments, and so makes a planner rather than being one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_force = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in by_force for p in parameters)


def _in_words(error: BaseException) -> str:
    """What was raised and, unless it is a sentence of ours, where."""
    if isinstance(error, StrettoError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
    return f"{reason} ({os.path.basename(place.filename)}, line {place.lineno})"


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
