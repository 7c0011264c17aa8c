"""Candidates tried on a load that moves, as they would be served: they follow it, and plan anew while it moves.

A plan made for one level of such a load, and tried at that level, says little of how its planner stands the way from
one level to the next. So the last round is run in the closed loop, on the arrivals as they came.

Where several applications share the workers all rounds are but the first, which tells planners apart: each application
moves by itself, and a plan for all of them that stands still loses what none loses that is made anew each 100 ms. By
such trials those that fear most were best.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stretto.core.deployment import Deployment
from stretto.core.plan import Plan
from stretto.core.verdict import Candidate
from stretto.core.view import Planner, View
from stretto.planners.candidates import candidates_without_tables, for_a_moving_load, rough
from stretto.planners.registry import planner_entry
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.ports import simulator_ports
from stretto.sim.service import Service
from stretto.twin.budget import Budget
from stretto.twin.classes import Classes
from stretto.twin.conditional import Drawn, Score, Worlds, bounded, tried

SECONDS, LONGEST_S = 8.0, 200.0  # of one trial; and where queries are few
MOST_WINDOWS = 4_000  # of one, where some candidate schedules by them
LEAST_QUERIES, MOST_QUERIES = 6_000, 50_000
MOST_OF_PLANNER = 2  # of its candidates that were best at one level
PLANNERS = 2  # whose candidates are all tried, where workers are shared
WARM_UP = 0.1  # of the seconds, in which a planner comes to know the load


@dataclass(eq=False)
class Followed:
    """`worlds` by the tail of run times, with arrivals as they came; `load` times as many. `is_shared`: by several
    applications.
    """

    worlds: Worlds
    load: float = 1.0
    is_shared: bool = False
    classes: Classes | None = None  # of queries, where there is evidence of them
    window_s: float = 0.1  # of schedules by windows
    has_windows: bool = False  # there may be some
    in_doubt: bool = False  # classes are: for what is promised
    plan_cpu_s: float = 0.0  # that planners took
    _arrivals: dict[tuple[float, float, float, int], Drawn] = field(default_factory=dict, repr=False)
    _values: dict[tuple[Candidate, int, float], float] = field(default_factory=dict, repr=False)
    _services: dict[float, Service] = field(default_factory=dict, repr=False)  # by tail
    _sessions: dict[Candidate, Session] = field(default_factory=dict, repr=False)  # with the tables that they made

    def score(self, candidate: Candidate, seed: int, factor: float = 1.0, *, part: float = 1.0) -> Score:
        """Of one trial, or of a part of one."""
        deployment, setting = self.worlds[candidate.tail]
        source = setting.source(self.load * factor)
        rate = max(sum(source.expected_rates(deployment, 1.0)), 1e-9)
        longest_s = min(LONGEST_S, MOST_WINDOWS * self.window_s) if self.has_windows else LONGEST_S
        seconds = part * min(max(SECONDS, min(LEAST_QUERIES / rate, longest_s)), MOST_QUERIES / rate)
        loading_s = min(_loading_s(deployment), SECONDS)
        warmup_s, seconds = loading_s + WARM_UP * seconds, loading_s + seconds
        key = (candidate.tail, seconds, factor, seed)
        if key not in self._arrivals:
            self._arrivals[key] = Drawn.of(source, deployment, seconds, seed, self.classes, self.in_doubt)
        if candidate.tail not in self._services:
            self._services[candidate.tail] = setting.service()
        session, by_windows = self._session(candidate), planner_entry(candidate.planner).by_windows
        try:
            return tried(
                deployment,
                session,
                self._arrivals[key],
                seconds=seconds,
                warmup_s=warmup_s,
                seed=seed,
                service=self._services[candidate.tail],
                delays=setting.delays,
                replan_s=self.window_s if by_windows else session.rhythm.period_s or None,
                by_windows=by_windows,
                expected_rates=self._arrivals[key].rates,
            )
        except Exception:  # a StrettoError, or a bug of a planner: whatever it is, others can
            return Score()

    def ranked(self, candidates: Sequence[Candidate], seed: int, part: float, budget: Budget) -> list[Candidate]:
        """By a part of a trial, the best first; where there are many, by what makes their plans quicker. Each is tried
        once, with no table made before.
        """

        def value(candidate: Candidate) -> float:
            key = (candidate, seed, part)
            if key not in self._values:
                form = rough(candidate) if self.is_shared else candidate
                self._values[key] = self.score(form, seed, part=part).value
            return self._values[key]

        values = budget.values(candidates, value)
        return sorted(values, key=lambda candidate: -values[candidate])

    def _session(self, candidate: Candidate) -> Session:
        if candidate not in self._sessions:
            options, variants = dict(candidate.options), dict(candidate.variants)
            session = served_session(candidate.planner, options, variants=variants, ports=simulator_ports())
            by_windows = planner_entry(candidate.planner).by_windows
            session.planner = self._timed(bounded(session.planner) if by_windows else session.planner)
            self._sessions[candidate] = session
        return self._sessions[candidate]

    def _timed(self, planner: Planner) -> Planner:
        def planned(view: View) -> Plan:
            began = time.process_time()
            plan = planner(view)
            self.plan_cpu_s += time.process_time() - began
            return plan

        return planned

    def entrants(self, best: Sequence[Candidate]) -> list[Candidate]:
        """Of each planner the two that were best at one level, in all forms that they may have on a load that moves: it
        makes tables for every level that the load passes. And all that follow a load at once. Where workers are
        shared, all forms of the best planners, as a trial of one plan does not tell them apart, and of those by
        windows, which were tried as they are served; those that differ by what is tried for a moving load alone are
        the same ones, with that.
        """
        if self.is_shared:
            first_of = {each.planner: each for each in reversed(best)}
            planners = list(dict.fromkeys(each.planner for each in best))
            leading = [*planners[:PLANNERS], *(name for name in planners if planner_entry(name).by_windows)]
            alike = [each for each in best if each.planner in leading and each.tail == first_of[each.planner].tail]
            distinct = {for_a_moving_load(each)[1:] or each: each for each in reversed(alike)}.values()
            return list(dict.fromkeys(form for each in distinct for form in for_a_moving_load(each)))
        entered: dict[str, list[tuple[Candidate, ...]]] = {}
        for forms in dict.fromkeys(for_a_moving_load(candidate) for candidate in best):
            entered.setdefault(forms[0].planner, []).append(forms)
        first = [form for ranked in entered.values() for forms in ranked[:MOST_OF_PLANNER] for form in forms]
        first += [replace(ranked[0][0], tail=tail) for ranked in entered.values() for tail in self.worlds]
        followers = candidates_without_tables(self.worlds[1.0][0])
        able = [each for each in followers if self.has_windows or not planner_entry(each.planner).by_windows]
        return list(dict.fromkeys([*first, *able]))


def _loading_s(deployment: Deployment) -> float:
    """Until workers that have nothing at first can have what they are told to."""
    if all(worker.resident is None for worker in deployment.workers):
        return 0.0
    return max(variant.load_ns for variant in deployment.variants) / 1e9
