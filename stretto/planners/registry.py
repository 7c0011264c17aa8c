"""The planners by name. One place to look a name up, and nothing more."""

from __future__ import annotations

from stretto.core.errors import StrettoError
from stretto.planners.entry import Entry, with_data_aware
from stretto.planners.listed import batching, instances, networks, ours, placement, variants, windows

DEFAULT_PLANNER = "judged"  # of a server
FAMILIES = (ours, batching, variants, placement, networks, instances, windows)
ENTRIES: tuple[Entry, ...] = tuple(with_data_aware(entry) for family in FAMILIES for entry in family.ENTRIES)
NAMES = tuple(entry.name for entry in ENTRIES)


def planner_entry(name: str) -> Entry:
    """The entry of a name, or of a user's own planner as MODULE:ATTRIBUTE; a wrong name is refused."""
    if ":" in name:
        return user_entry(name)
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise StrettoError(f"there is no planner {name[:40]!r}; there are {', '.join(NAMES)}, or MODULE:FUNCTION")


def user_entry(reference: str) -> Entry:
    """A planner that is no part of this package, found and made once, so that mistakes show at once."""
    from stretto.planners.user import rhythm_of

    return with_data_aware(
        Entry(
            reference,
            "a planner of the user's own",
            "user:UserPlanner",
            preset={"reference": reference},
            replan_s=rhythm_of(reference),
            chooses_variants=True,
        )
    )
