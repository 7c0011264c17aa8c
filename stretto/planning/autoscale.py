"""How many workers a load needs, from what each control period showed (Symphony section 4.4). No clock: time comes in.

The paper has two signals: a bad rate r asks for N·r/(1 − r) more workers, an idle share f lets N·f go. Both say the
same of a schedule that is flat-topped: what was asked for needs the worker time that was spent, and for what went
unanswered as much again as for what was answered. That need does not depend on how many workers there were, so it is
also right in a period in which some came or left, and workers that are on their way are never ordered twice. Where
applications differ, r alone asks for up to twice too many; so what is missing is reckoned by application.

A schedule that starts batches as soon as a worker is free is not flat-topped: nobody idles, because batches are small
or variants accurate. There the need is what the same answers take when workers are pressed, which overloads show.

Between the need and the workers stands room: idle time that bursts take up, by the square root of the need, because
bursts even out among many. Where it turns out too small it is widened from the bad rate itself, as the paper adds
workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from stretto.core.advice import Advice
from stretto.planning.autoscale_options import MOST_ROOM, AutoscaleOptions
from stretto.planning.fleet_reading import Reading, Speeds
from stretto.planning.judged_fleet import FollowedJudge

ROUNDING = 1e-9  # 0.1·10 workers is one worker, whatever floating point makes of it
ROOM_OF = 100  # workers, whose idle share the option is
FIRST_SLOWNESS = 1.25  # of workers that are pressed, over their profiles: until it was seen
PRESSED = 0.9  # busy workers: fewer than that are not
STEADY = 2  # bad periods in a row, under one load and with all workers there, that are not the load's fault
FORGET = 0.005  # of what a bad period taught of room, in each good one
TREND = 2  # rises in a row that are taken for a trend, if they are more than the slack together; the first is not one
EVEN = 0.25  # of the whole, that each of them is at least; what came at once does not go on
HEAVY = 0.4  # bad rate from which on the need is a little too high by itself, and gets no room on top
OVERLOAD, SHORT, IDLE, SAME, COMING, FULL, JUDGED = (
    "queries go unanswered: more workers",
    "hardly any worker is idle: more workers",
    "workers are idle: fewer of them",
    "as many as are needed",
    "queries go unanswered until workers come that were ordered",
    "queries go unanswered, and there may be no more workers",
    "the judge's fleet for this load",
)

Floor = Callable[[Sequence[float]], Mapping[str, float]]  # workers by kind that rates (by application) need at least


class Autoscaler:
    """Called once a period with what that showed; remembers what it wanted, and the need that it saw."""

    def __init__(
        self,
        options: AutoscaleOptions,
        speeds: Speeds | None = None,
        floor: Floor | None = None,
        judge: FollowedJudge | None = None,
    ) -> None:
        """`judge`: its fleet goes before what the signals say, where that is so good."""
        self.options, self._judge = options, judge
        self.follow(speeds or {}, floor)
        self._wanted: dict[str, int] = {}
        self._need: dict[str, float] = {}  # smoothed
        self._recent: dict[str, list[float]] = {kind: [] for kind in options.kinds}  # need with room, by period
        self._trail: dict[str, list[float]] = {}  # needs as read, each near the one before
        self._calm_slowness = math.inf  # when last everything was answered
        self._pressed_slowness = FIRST_SLOWNESS  # of a schedule that is not flat-topped, when last too much was asked
        self._was_heavy = False  # the last period was far from enough: what it asked for had no room
        self._spread = dict.fromkeys(options.kinds, options.room * math.sqrt(ROOM_OF))  # room of one worker's need
        self._before: Mapping[str, int] | None = None  # workers at the start of the period
        self._bad_and_whole = 0  # periods in a row that were bad with all that is wanted there

    def follow(self, speeds: Speeds, floor: Floor | None = None) -> None:
        """What is served: `speeds` tell unequal kinds apart; `floor` says what a promise of accuracy needs."""
        self._speeds, self._floor = speeds, floor

    def __call__(self, reading: Reading) -> Advice:
        options = self.options
        if not self._wanted:
            self._wanted = {kind: self._bounded(kind, reading.present.get(kind, 0)) for kind in options.kinds}
        is_whole = self._before is not None and all(
            self._before.get(kind, 0) == reading.present.get(kind, 0) == self._wanted[kind] for kind in options.kinds
        )
        there = fmean((sum(reading.present.values()), sum((self._before or reading.present).values())))
        self._before = dict(reading.present)
        is_bad = reading.bad_rate > options.bad_rate
        self._bad_and_whole = self._bad_and_whole + 1 if is_bad and is_whole else 0
        need = self._needed(reading, is_bad)
        wanted = {kind: self._for_kind(kind, need[kind], reading, is_bad) for kind in options.kinds}
        if not any(wanted.values()) and not any(reading.present.get(kind) for kind in reading.present.keys() - wanted):
            wanted[min(wanted, key=lambda kind: options.kinds[kind].cost)] = 1  # somebody must be there to measure
        signalled = wanted
        if self._judge is not None:
            wanted = self._judge(signalled, self._wanted, reading, is_bad)
        reason = self._reason(wanted, reading, is_bad) if wanted == signalled else JUDGED
        self._wanted, self._was_heavy = wanted, reading.bad_rate > HEAVY
        idle = max(0.0, 1 - sum(reading.busy.values()) / there) if there else 0.0
        cost = sum(options.kinds[kind].cost * count for kind, count in wanted.items())
        return Advice(reading.now_ns, dict(wanted), dict(reading.present), reading.bad_rate, idle, cost, reason)

    def _reason(self, wanted: Mapping[str, int], reading: Reading, is_bad: bool) -> str:
        now, before = sum(wanted.values()), sum(self._wanted.values())
        if now != before:
            return IDLE if now < before else OVERLOAD if is_bad else SHORT
        if is_bad and any(count > reading.present.get(kind, 0) for kind, count in wanted.items()):
            return COMING
        is_full = all(count == self.options.kinds[kind].most for kind, count in wanted.items())
        return FULL if is_bad and is_full else SAME

    # -- the need ----------------------------------------------------------------------------------------------------

    def _needed(self, reading: Reading, is_bad: bool) -> dict[str, float]:
        """Workers by kind that what came would have kept busy, had all of it been answered."""
        spared = 1.0 if reading.is_flat else self._spared(reading, is_bad)
        need = {kind: reading.busy.get(kind, 0.0) * spared for kind in self.options.kinds}
        if is_bad:
            for kind, more in self._unmet(reading, need).items():
                need[kind] += more
        elif any(reading.answered) and any(reading.busy.values()):
            self._calm_slowness = self._slowness(reading)
        if self._floor is not None:
            floor = self._floor([count / reading.seconds for count in reading.came])
            slow = 1.0 if reading.is_flat else self._pressed_slowness
            need = {kind: max(count, slow * floor.get(kind, 0.0)) for kind, count in need.items()}
        return need

    def _unmet(self, reading: Reading, need: Mapping[str, float]) -> dict[str, float]:
        """For what went unanswered as much as for what was answered, on the kind that does it at the lowest cost and is
        not at its most.
        """
        more = dict.fromkeys(self.options.kinds, 0.0)
        answered = sum(reading.answered)
        busy = sum(reading.busy.values())
        if not answered or busy <= 0:  # what an answer needs is not known; somebody must try
            return more if any(reading.present.values()) else dict.fromkeys(more, 1.0)
        usual = self._calm_slowness if reading.is_flat else self._pressed_slowness
        slowness = min(self._slowness(reading), usual)  # batches may be poor where far too much is asked for
        for number, (came, given) in enumerate(zip(reading.came, reading.answered, strict=True)):
            left = max(0, came - given) / reading.seconds
            for kind in sorted(more, key=lambda kind: self._price(kind, number)):
                speed = self._speed(kind, number)
                if left <= 0 or speed <= 0:
                    continue
                space = max(0.0, self.options.kinds[kind].most - need[kind] - more[kind])
                taken = min(left * slowness / speed, space)
                more[kind] += taken
                left -= taken * speed / slowness
        return more

    def _spared(self, reading: Reading, is_bad: bool) -> float:
        """The share of their busy time in which workers would do the same if they were pressed, where a schedule is not
        flat-topped: in large batches of fast variants. How fast that is, an overload shows.
        """
        slowness = self._slowness(reading)
        if is_bad and reading.bad_rate < HEAVY and sum(reading.busy.values()) > PRESSED * sum(reading.present.values()):
            self._pressed_slowness = slowness
        return min(1.0, self._pressed_slowness / slowness)

    def _slowness(self, reading: Reading) -> float:
        """What busy workers could have answered by their profiles, over what they did."""
        total = sum(reading.answered)
        could = 0.0
        for kind, busy in reading.busy.items():
            each = [(count, self._speed(kind, number)) for number, count in enumerate(reading.answered)]
            able = [(count, speed) for count, speed in each if count and speed > 0]
            seconds = sum(count / speed for count, speed in able)
            could += busy * sum(count for count, _ in able) / seconds if seconds else 0.0
        return could * reading.seconds / total if could > 0 else 1.0

    def _speed(self, kind: str, application: int) -> float:
        speeds = self._speeds.get(kind)
        return 1.0 if speeds is None or application >= len(speeds) else float(speeds[application])

    def _price(self, kind: str, application: int) -> float:
        speed = self._speed(kind, application)
        return self.options.kinds[kind].cost / speed if speed > 0 else math.inf

    # -- one kind ----------------------------------------------------------------------------------------------------

    def _for_kind(self, kind: str, need: float, reading: Reading, is_bad: bool) -> int:
        options, present = self.options, reading.present.get(kind, 0)
        now = max(self._wanted[kind], present)
        need = self._smoothed(kind, need)
        is_steady = self._bad_and_whole >= STEADY and len(self._trail[kind]) >= STEADY
        if not is_bad:
            self._spread[kind] += FORGET * (options.room * math.sqrt(ROOM_OF) - self._spread[kind])
        elif is_steady and need / (1 - self._room(kind, need)) <= now and self._is_short(kind, reading):
            # The schedule is not flat-topped here: it fails with workers idle. Keep more idle from now on.
            enough = now + max(1, math.ceil(now * reading.bad_rate / (1 - min(reading.bad_rate, 0.9)) - ROUNDING))
            idle = 1 - need * (1 + options.slack / 2) / enough
            self._spread[kind] = max(self._spread[kind], idle * math.sqrt(max(need, 1.0)))
        room = self._room(kind, need)
        with_room = need if reading.bad_rate > HEAVY else need / (1 - room)
        recent = self._recent[kind] = [*self._recent[kind], with_room][-options.calm_periods :]
        if is_bad or need > now * (1 - room / 2) or self._was_heavy:
            target = self._landing(with_room if reading.bad_rate > HEAVY else with_room * (1 + options.slack / 2))
            if target > now:
                return self._bounded(kind, min(target, math.floor(options.growth * max(now, 1))))
        calm = max(recent)
        if not is_bad and len(recent) == options.calm_periods and now - calm >= 1 + options.slack * now:
            least = now - math.floor(options.shrink * now)
            return self._bounded(kind, max(self._landing(calm * (1 + options.slack / 2)), least))
        return self._wanted[kind]

    @staticmethod
    def _landing(workers: float) -> int:
        return math.ceil(workers - ROUNDING)

    def _room(self, kind: str, need: float) -> float:
        return min(MOST_ROOM, self._spread[kind] / math.sqrt(max(need, 1.0)))

    def _is_short(self, kind: str, reading: Reading) -> bool:
        """Whether workers of this kind can do what goes unanswered, at the lowest cost of those that can be had."""
        unmet = [came - given for came, given in zip(reading.came, reading.answered, strict=True)]
        worst = unmet.index(max(unmet)) if unmet else 0
        open_kinds = [each for each in self.options.kinds if self._wanted[each] < self.options.kinds[each].most]
        return bool(open_kinds) and kind == min(open_kinds, key=lambda each: self._price(each, worst))

    def _smoothed(self, kind: str, need: float) -> float:
        """A reading that is not near the one before is another load, perhaps half of it: the next one counts whole."""
        trail = self._trail.get(kind, [])
        is_near = bool(trail) and abs(need - trail[-1]) <= max(self.options.near * trail[-1], ROUNDING)
        trail = self._trail[kind] = [*trail[-TREND - 1 :], need] if is_near else [need]
        before = self._need.get(kind, need)
        if len(trail) > 2 and not self._was_heavy:
            last = trail[-TREND - 1 :]
            rise = last[-1] - last[0]
            is_even = all(after - before > EVEN * rise for before, after in pairwise(last))
            if len(trail) > len(last) and rise > self.options.slack * last[0] and is_even:
                self._need[kind] = need
                return need + rise / TREND * self._lead  # it goes on while workers start
            need = before + self.options.smoothing * (need - before)
        self._need[kind] = need
        return need

    @property
    def _lead(self) -> float:
        """Periods from the middle of the one that was measured to the end of the one that is ordered for."""
        return 1.5 + self.options.start_s / self.options.period_s

    def _bounded(self, kind: str, count: int) -> int:
        bounds = self.options.kinds[kind]
        return min(max(count, bounds.least), bounds.most)
