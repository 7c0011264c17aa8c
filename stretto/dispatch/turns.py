"""Turns: a lane looks for a worker, a worker looks for a lane, a timer rings.

`refresh` renews a lane's candidate and timer; `ring` acts on it; `serve` finds work for a worker that became free.
"""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.core.plan import LaneChoice
from stretto.dispatch.batches import commit
from stretto.dispatch.late import drop_infeasible, infeasible_from_ns
from stretto.dispatch.pool import find_early, find_idle, has_idle, is_told_early, kind_entry, load, make_room, set_idle
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import IN_FLIGHT, NEVER, batches, int64s, lane_kinds, lanes, resident, rows, workers
from stretto.dispatch.release import candidate, delay_ns
from stretto.dispatch.select import WAIT
from stretto.dispatch.timers import first_timer, set_timer, timer_of
from stretto.dispatch.worklist import take_work


@compiled
def renew_candidate(s: Any, lane_index: int, now_ns: int) -> None:
    """What the lane would run on each kind of its workers, and when the first and the next of these may start."""
    lane = lanes(s)[lane_index]
    lane.release_ns = NEVER
    lane.later_ns = NEVER
    lane.rank_ns = NEVER
    if lane.length == 0:
        return
    for position in range(lane.kind_first, lane.kind_first + lane.kind_count):
        entry = lane_kinds(s)[position]
        variant, size, release, rank = candidate(s, lane_index, entry.kind, NONE, now_ns)
        entry.variant = variant
        entry.size = size
        entry.released = variant != WAIT and release <= now_ns
        lane.release_ns = min(lane.release_ns, release)
        if release > now_ns:
            lane.later_ns = min(lane.later_ns, release)
        lane.rank_ns = min(lane.rank_ns, rank)


@compiled
def refresh(s: Any, lane_index: int, now_ns: int) -> None:
    """Renew candidate and timer; a candidate that may start rings at once, so that `ring` finds it a worker.

    Where every worker of the lane is busy, `ring` would find none: the lane waits until one is free.
    """
    lane = lanes(s)[lane_index]
    renew_candidate(s, lane_index, now_ns)
    infeasible_ns = infeasible_from_ns(lane)
    at_ns = lane.release_ns
    if at_ns <= now_ns < infeasible_ns and not is_told_early(lane) and not has_idle(s, lane_index):
        at_ns = lane.later_ns
    set_timer(s, lane_index, max(now_ns, min(at_ns, infeasible_ns)))


@compiled
def look_around(s: Any, worker_index: int, now_ns: int) -> None:
    """Lanes whose choices lean on what their workers run choose again: that has changed."""
    worker = workers(s)[worker_index]
    for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
        lane_index = int64s(s.worker_lanes_at, s.worker_lanes_count)[position]
        if lanes(s)[lane_index].crowd_lean > 0.0 and lanes(s)[lane_index].length > 0:
            refresh(s, lane_index, now_ns)


@compiled
def pass_turn(s: Any, worker_index: int, lane_index: int) -> None:
    """Round robin: after this lane, the worker looks at the one behind it first."""
    worker = workers(s)[worker_index]
    lane_of = int64s(s.worker_lanes_at, s.worker_lanes_count)
    for place in range(worker.lane_count):
        if lane_of[worker.lane_first + place] == lane_index:
            worker.lane_cursor = (place + 1) % worker.lane_count
            return


@compiled
def take_turn(s: Any, lane_index: int, now_ns: int) -> bool:
    """Find the lane's released candidate a worker, idle or soon free; a worker soon free takes its most urgent lane."""
    worker = find_idle(s, lane_index)
    if worker != NONE:
        if not commit(s, lane_index, worker, now_ns):
            return False
        if s.lane_choice == LaneChoice.ROUND_ROBIN:
            pass_turn(s, worker, lane_index)
        return True
    worker, grant_ns = find_early(s, lane_index)
    return worker != NONE and grant_ns <= now_ns and give_candidate(s, worker, now_ns)


@compiled
def ring(s: Any, lane_index: int, now_ns: int) -> None:
    """The lane's timer: drop what is lost, start what may start, and set the timer to a later moment."""
    lane = lanes(s)[lane_index]
    while True:
        drop_infeasible(s, lane_index, now_ns)
        renew_candidate(s, lane_index, now_ns)
        if lane.release_ns > now_ns:
            break
        if not take_turn(s, lane_index, now_ns):  # which may have given up heads
            renew_candidate(s, lane_index, now_ns)
            break
    at_ns = min(infeasible_from_ns(lane), lane.later_ns)
    if lane.release_ns <= now_ns:  # it waits for a worker, which is served when it is free or granted a little before
        _, grant_ns = find_early(s, lane_index)
        if grant_ns > now_ns:  # one that could be told now was just tried in vain
            at_ns = min(at_ns, grant_ns)
    set_timer(s, lane_index, max(at_ns, now_ns + 1))


@compiled
def pick_lane(s: Any, worker_index: int, now_ns: int, past_ns: int, tried: int) -> int:
    """The worker's lane to serve next among those whose candidate may start, or -1.

    `tried` is a lane of rank `past_ns` that was tried in vain; only those that come later in the order of choice are
    looked at. -1: none was tried.
    """
    worker = workers(s)[worker_index]
    lane_of = int64s(s.worker_lanes_at, s.worker_lanes_count)
    chosen = NONE
    if s.lane_choice == LaneChoice.ROUND_ROBIN:
        for step in range(worker.lane_count):
            lane_index = lane_of[worker.lane_first + (worker.lane_cursor + step) % worker.lane_count]
            if lanes(s)[lane_index].release_ns <= now_ns:
                pass_turn(s, worker_index, lane_index)
                return lane_index
        return NONE
    rank = NEVER
    for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
        lane_index = lane_of[position]
        lane = lanes(s)[lane_index]
        if lane.release_ns <= now_ns and lane.rank_ns < rank and (lane.rank_ns, lane_index) > (past_ns, tried):
            chosen = lane_index
            rank = lane.rank_ns
    return chosen


@compiled
def look_again(s: Any, lane_index: int, now_ns: int, gave_up: bool) -> None:
    """A lane that had nothing for a worker may have to start later than it thought; or at once, if it gave up heads."""
    lane = lanes(s)[lane_index]
    renew_candidate(s, lane_index, now_ns)
    at_ns = now_ns if gave_up else min(lane.later_ns, infeasible_from_ns(lane))
    set_timer(s, lane_index, min(timer_of(s, lane_index), max(at_ns, now_ns)))


@compiled
def give_candidate(s: Any, worker_index: int, now_ns: int) -> bool:
    """The candidate of the first of the worker's lanes, in the order of choice, that has something for it."""
    past_ns, tried = -NEVER, NONE
    asked = 0
    # Earliest start ends by itself: rank and lane rise with every pick, also when one that gave up heads comes again.
    while s.lane_choice == LaneChoice.EARLIEST_START or asked < workers(s)[worker_index].lane_count:
        asked += 1
        lane_index = pick_lane(s, worker_index, now_ns, past_ns, tried)
        if lane_index == NONE:
            return False
        past_ns, tried = lanes(s)[lane_index].rank_ns, lane_index
        waiting = lanes(s)[lane_index].length
        if commit(s, lane_index, worker_index, now_ns):
            refresh(s, lane_index, now_ns)
            return True
        look_again(s, lane_index, now_ns, lanes(s)[lane_index].length != waiting)
    return False


@compiled
def serve(s: Any, worker_index: int, now_ns: int) -> None:
    """A worker is free: a load that the placement asks for, a pre-formed work, or the candidate of one of its lanes."""
    worker = workers(s)[worker_index]
    if not worker.alive or worker.depth > 0:
        return
    if worker.loads_wanted > 0 and start_load(s, worker_index, now_ns):
        return
    if take_work(s, worker_index, now_ns):
        return
    give_candidate(s, worker_index, now_ns)


@compiled
def expect_worker(s: Any, worker_index: int, now_ns: int) -> None:
    """A worker began the batch that it was given ahead: lanes that wait for any worker look at it before that ends."""
    worker = workers(s)[worker_index]
    for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
        lane_index = int64s(s.worker_lanes_at, s.worker_lanes_count)[position]
        lane = lanes(s)[lane_index]
        if is_told_early(lane) and lane.length > 0 and lane.release_ns <= now_ns:
            size = lane_kinds(s)[kind_entry(s, lane, worker.kind)].size
            grant_ns = worker.free_ns - max(delay_ns(lane, size), lane.ahead_ns)
            set_timer(s, lane_index, min(timer_of(s, lane_index), max(grant_ns, now_ns)))


@compiled
def start_load(s: Any, worker_index: int, now_ns: int) -> bool:
    """Load the next variant that the placement wants here; the worker is taken until it is done."""
    worker = workers(s)[worker_index]
    for variant in range(s.variants):
        entry = resident(s)[worker_index * s.variants + variant]
        if entry.wanted and not entry.loaded and not entry.arriving:
            if not make_room(s, worker_index, variant):
                entry.wanted = 0
                worker.loads_wanted -= 1
                continue
            load(s, worker_index, variant, True, now_ns)
            batch = batches(s)[worker_index * IN_FLIGHT + ((worker.front + worker.depth) & 1)]
            batch.first = NONE
            batch.count = 0
            batch.lane = NONE
            batch.variant = variant
            batch.start_ns = now_ns
            batch.load_ns = 0
            batch.expected_ns = now_ns + rows(s)[variant * s.kinds + worker.kind].load_ns
            worker.depth += 1
            worker.free_ns = batch.expected_ns
            set_idle(s, worker_index, False)
            return True
    return False


@compiled
def due(s: Any, now_ns: int) -> None:
    """Let every timer that is due ring."""
    while s.wake_ns <= now_ns:
        ring(s, first_timer(s), now_ns)
