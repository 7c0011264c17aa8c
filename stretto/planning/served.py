"""The session that serves: planner by name, with its one set of defaults, as the server, the simulator and the
benchmarks take it. What is called served anywhere is made here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stretto.core.errors import StrettoError
from stretto.core.verdict import GivenValue
from stretto.planners.entry import DATA_AWARE
from stretto.planners.ports import HasRhythm, HasSlot, KnowsNetworks, LooksAtEvidence, MayUseEvidence, Ports
from stretto.planners.registry import DEFAULT_PLANNER, planner_entry
from stretto.planning.session import Rhythm, Session

LEAST_PERIOD_S, LONGEST_PERIOD_S = 0.001, 7 * 86_400.0


def served_session(
    name: str = DEFAULT_PLANNER,
    options: Mapping[str, GivenValue] | None = None,
    *,
    variants: Mapping[str, str] | None = None,
    ports: Ports | None = None,
    data_aware: bool = False,
    period_s: float | None = None,
) -> Session:
    """`data_aware` is the option of that name, for a planner that has it: one that has not looks at evidence by itself.
    `period_s` is another rhythm than the planner is made for, within what windows allow that it may follow.
    """
    entry = planner_entry(name)
    given = ports or Ports()
    if given.stored and "stored" not in entry.ports:
        raise StrettoError(
            f"planner {name} follows no policies; name one that does, as --planner shared_queue, or leave the file out"
        )
    has_option = any(option.name == DATA_AWARE.name for option in entry.options)
    wanted = {**(options or {}), DATA_AWARE.name: True} if data_aware and has_option else options
    planner = entry.make(wanted, variants, given)
    looks = isinstance(planner, LooksAtEvidence) and planner.looks_at_evidence
    knows_networks = isinstance(planner, KnowsNetworks) and planner.knows_networks
    by_options_s = planner.replan_s if isinstance(planner, HasRhythm) else None
    if isinstance(planner, HasSlot):
        by_options_s = planner.slot_s
        if period_s is not None and not math.isclose(period_s, planner.slot_s):
            raise StrettoError(
                f"planner {name} has a policy for slots of {planner.slot_s * 1e3:g} ms, and cannot plan each"
                f" {period_s * 1e3:g} ms; leave the period out, or train a policy for it (stretto train --slot-ms)"
            )
    rhythm = Rhythm(by_options_s or entry.replan_s or 0.0, entry.by_windows, isinstance(planner, MayUseEvidence))
    if period_s is not None:
        if not LEAST_PERIOD_S <= period_s <= LONGEST_PERIOD_S:
            raise StrettoError(f"the planner is asked each {LEAST_PERIOD_S * 1e3:g} ms to a week, not {period_s} s")
        rhythm = Rhythm(period_s, if_swapped=rhythm.if_swapped)
    return Session(planner, rhythm=rhythm, looks_at_evidence=looks, knows_networks=knows_networks)
