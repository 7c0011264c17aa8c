"""A slow, obvious reference of Symphony's rules, written from section 4.3 and figure 16 of the paper.

Plain lists, sorted afresh at every look. It shares no code with the package: what it takes in are numbers, and what it
gives are the batches and the drops. It follows the paper except where the project says that it departs:

- a granted worker is not held for a candidate that may not start yet; the candidate goes back to counting down;
- a head that cannot make it on the granted worker is dropped only if it could not make it on any other either;
- the timer of an infeasible query rings as soon as dl − l(1) − delay(1) is over, not at dl;
- candidates that wait for a worker are ranked by sched_at = dl − l(b+1) of section 4.3 (never clamped to "now").

The drop rule keeps up "a desirable batch size" (section 5.3), as the authors' scheduler does: heads are dropped that
leave no time for the target batch. They are not dropped in vain: where no choice of heads to drop leads to the target,
the target is what can be led to. Here the project departs once more: a query that had no time for such a batch when it
came asks for a quick answer, and is not dropped for growing old.

Every request informs the ranking anew, as `schedule` of figure 16 does: a candidate that grows while it waits for a
worker must start earlier than it had to before.

At one instant completions come first, then arrivals, then timers; after each completion and each arrival the timers
that are due ring. Of equals, the lowest number goes first, workers and lanes alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FOREVER = 10**18
IN_FLIGHT = 2  # one batch runs, and one may be on its way behind it
BUCKETS = 8  # of the rate window


@dataclass(frozen=True)
class Model:
    """One lane: its latency by batch size from 1, its delays, and its rules."""

    latency: tuple[int, ...]
    control: int = 0
    data: int = 0
    deferred: bool = True
    gathered: bool = False  # also start at more than βλ
    beta: float = 0.0
    floors: tuple[float, ...] = ()  # batch-aware pruning: rate per second from which a batch of 1, 2, … is the least
    max_batch: int = 4096

    @property
    def limit(self) -> int:
        return min(len(self.latency), self.max_batch)

    def takes(self, batch: int) -> int:
        return self.latency[batch - 1]

    def delay(self, batch: int) -> int:
        return self.control + self.data * batch


@dataclass(frozen=True)
class Request:
    number: int
    model: int
    arrival: int
    deadline: int


@dataclass(frozen=True, order=True)
class Batch:
    start: int
    worker: int
    model: int
    end: int
    members: tuple[int, ...]


@dataclass(frozen=True, order=True)
class Dropped:
    number: int
    at: int
    reason: str  # infeasible, expired, or overload


@dataclass
class Candidate:
    size: int
    start_at: int  # when it may be handed to a worker
    rank: int  # section 4.3's sched_at


@dataclass
class Lane:
    model: Model
    number: int
    waiting: list[Request] = field(default_factory=list)
    start_at: int = FOREVER
    rank: int = FOREVER
    size: int = 0
    alarm: int = FOREVER
    arrivals: list[int] = field(default_factory=list)
    rate: float = 0.0  # λ per unit of time

    def queue(self) -> list[Request]:
        return sorted(self.waiting, key=lambda request: (request.deadline, request.number))


class Reference:
    """Runs a list of requests, in order of arrival, on equal workers."""

    def __init__(self, models: Sequence[Model], workers: int, requests: Sequence[Request], window: int) -> None:
        self.lanes = [Lane(model, number) for number, model in enumerate(models)]
        self.in_flight: list[list[Batch]] = [[] for _ in range(workers)]
        self.requests = list(requests)
        self.bucket = window // BUCKETS
        self.now = 0
        self.batches: list[Batch] = []
        self.drops: list[Dropped] = []

    def run(self) -> None:
        while True:
            ends = [(batches[0].end, worker) for worker, batches in enumerate(self.in_flight) if batches]
            end, worker = min(ends, default=(FOREVER, -1))
            arrival = self.requests[0].arrival if self.requests else FOREVER
            alarm = min(lane.alarm for lane in self.lanes)
            self.now = min(end, arrival, alarm)
            if self.now == FOREVER:
                return
            if end == self.now:
                self.in_flight[worker].pop(0)
                if not self.in_flight[worker]:
                    self.look_for_work(worker)
                else:
                    self.expect(worker)
            elif arrival == self.now:
                self.arrive(self.requests.pop(0))
            self.ring_what_is_due()

    # -- events -------------------------------------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        lane = self.lanes[request.model]
        self.count_arrival(lane)
        if not self.can_make_it(lane, request):
            self.drop(request)
            return
        lane.waiting.append(request)
        self.renew(lane)
        self.set_alarm(lane)

    def ring_what_is_due(self) -> None:
        while True:
            due = [lane for lane in self.lanes if lane.alarm <= self.now]
            if not due:
                return
            self.ring(due[0])

    def ring(self, lane: Lane) -> None:
        while True:
            self.drop_infeasible(lane)
            self.renew(lane)
            if lane.start_at > self.now or not self.find_worker(lane):
                break
        self.renew(lane)
        lane.alarm = self.infeasible_from(lane)
        if lane.start_at > self.now:
            lane.alarm = min(lane.alarm, lane.start_at)
        elif self.grant_at(lane) > self.now:  # it waits for a worker: one that is soon free is granted a little before
            lane.alarm = min(lane.alarm, self.grant_at(lane))

    def look_for_work(self, worker: int) -> bool:
        """A free worker, or one soon free, takes the most urgent candidate that may start."""
        ready = [lane for lane in self.lanes if lane.start_at <= self.now]
        for lane in sorted(ready, key=lambda lane: (lane.rank, lane.number)):
            waiting = len(lane.waiting)
            took = self.take(lane, worker)
            self.renew(lane)
            if took:
                self.set_alarm(lane)
                return True
            if len(lane.waiting) < waiting:
                lane.alarm = self.now  # with another head: look again at once
            elif lane.start_at > self.now:
                lane.alarm = min(lane.alarm, lane.start_at)
        return False

    def expect(self, worker: int) -> None:
        """A worker began the batch that it was granted early: those who wait look at it before that one ends."""
        for lane in self.lanes:
            if lane.model.control + lane.model.data > 0 and lane.waiting and lane.start_at <= self.now:
                lane.alarm = min(lane.alarm, max(self.now, self.free_at(worker) - lane.model.delay(lane.size)))

    # -- a lane's candidate -------------------------------------------------------------------------------------------

    def candidate(self, lane: Lane, free_at: int) -> Candidate:
        """update_candidate of figure 16, for a worker that is free at `free_at`."""
        model, queue = lane.model, lane.queue()
        if not queue:
            return Candidate(0, FOREVER, FOREVER)
        deadline = queue[0].deadline
        size = 0
        for batch in range(1, min(len(queue), model.limit) + 1):
            if max(self.now + model.delay(batch), free_at) + model.takes(batch) <= deadline:
                size = batch
        if size == 0:
            return Candidate(0, self.now, deadline - model.takes(1))
        one_more = model.takes(min(size + 1, len(model.latency)))
        start_at = self.now
        may_grow = size == len(queue) and size < model.limit
        has_gathered = model.gathered and size > model.beta * lane.rate
        if model.deferred and may_grow and not has_gathered:
            start_at = deadline - one_more - model.delay(size)
        return Candidate(size, start_at, deadline - one_more)

    def renew(self, lane: Lane) -> None:
        candidate = self.candidate(lane, free_at=self.now)
        lane.size, lane.start_at, lane.rank = candidate.size, candidate.start_at, candidate.rank

    def set_alarm(self, lane: Lane) -> None:
        lane.alarm = max(self.now, min(lane.start_at, self.infeasible_from(lane)))

    def find_worker(self, lane: Lane) -> bool:
        """on_model_timer: an idle worker takes this candidate; one soon free takes the most urgent of all."""
        idle = [worker for worker, batches in enumerate(self.in_flight) if not batches]
        if idle:
            return self.take(lane, idle[0])
        if self.grant_at(lane) > self.now:
            return False
        return self.look_for_work(self.earliest_free()[1])

    def free_at(self, worker: int) -> int:
        return self.in_flight[worker][-1].end if self.in_flight[worker] else self.now

    def earliest_free(self) -> tuple[int, int]:
        open_to_more = [worker for worker, batches in enumerate(self.in_flight) if len(batches) < IN_FLIGHT]
        return min(((self.free_at(worker), worker) for worker in open_to_more), default=(FOREVER, -1))

    def grant_at(self, lane: Lane) -> int:
        """set_gpu_timer: as long before the worker is free as the batch is on its way."""
        if lane.model.control + lane.model.data == 0:
            return FOREVER
        return self.earliest_free()[0] - lane.model.delay(lane.size)

    def take(self, lane: Lane, worker: int) -> bool:
        """granted_gpu: the candidate as it is now, pruned; false where it may not start yet."""
        model = lane.model
        free_at = self.free_at(worker)
        self.drop_infeasible(lane)
        while True:
            if not lane.waiting:
                return False
            candidate = self.candidate(lane, free_at)
            if candidate.size > 0:
                break
            if any(self.candidate(lane, self.free_at(other)).size > 0 for other in range(len(self.in_flight))):
                return False
            self.drop(lane.queue()[0])
        if candidate.start_at > self.now:
            return False
        size = candidate.size
        target = min(self.floor(lane), self.most_together(lane, free_at))
        while size < target and self.had_time_for(lane, lane.queue()[0], target):
            self.drop(lane.queue()[0], "overload")
            size = self.candidate(lane, free_at).size
        members = lane.queue()[:size]
        start = max(self.now + model.delay(size), free_at)
        batch = Batch(start, worker, lane.number, start + model.takes(size), tuple(one.number for one in members))
        lane.waiting = [request for request in lane.waiting if request not in members]
        self.in_flight[worker].append(batch)
        self.batches.append(batch)
        return True

    # -- lateness -----------------------------------------------------------------------------------------------------

    def can_make_it(self, lane: Lane, request: Request) -> bool:
        return self.now + lane.model.delay(1) + lane.model.takes(1) <= request.deadline

    def infeasible_from(self, lane: Lane) -> int:
        if not lane.waiting:
            return FOREVER
        return lane.queue()[0].deadline - lane.model.takes(1) - lane.model.delay(1) + 1

    def drop_infeasible(self, lane: Lane) -> None:
        for request in lane.queue():
            if not self.can_make_it(lane, request):
                self.drop(request)

    def drop(self, request: Request, reason: str = "") -> None:
        lane = self.lanes[request.model]
        lane.waiting = [other for other in lane.waiting if other is not request]
        late = "expired" if request.deadline < self.now else "infeasible"
        self.drops.append(Dropped(request.number, self.now, reason or late))

    # -- load ---------------------------------------------------------------------------------------------------------

    def most_together(self, lane: Lane, free_at: int) -> int:
        """The first query from which on all can run as one batch; so many are they."""
        queue = lane.queue()
        for heads in range(len(queue)):
            size = min(len(queue) - heads, lane.model.limit)
            if max(self.now + lane.model.delay(size), free_at) + lane.model.takes(size) <= queue[heads].deadline:
                return size
        return 0

    def had_time_for(self, lane: Lane, request: Request, size: int) -> bool:
        return request.arrival + lane.model.delay(size) + lane.model.takes(size) <= request.deadline

    def floor(self, lane: Lane) -> int:
        """The first rates of the list that λ has reached."""
        count = 0
        for rate in lane.model.floors:
            if rate > lane.rate * 1e9:
                break
            count += 1
        return count

    def count_arrival(self, lane: Lane) -> None:
        """λ over seven full buckets and the one in use, renewed by the first arrival of each bucket.

        While the first window is not over it is renewed by every arrival: the gaps so far over the time they took.
        """
        lane.arrivals.append(self.now)
        first = lane.arrivals[0]
        age = self.now - first
        bucket = age // self.bucket
        is_new = len(lane.arrivals) > 1 and (lane.arrivals[-2] - first) // self.bucket < bucket
        if age < BUCKETS * self.bucket or is_new:
            since = first + (bucket - BUCKETS + 1) * self.bucket
            count = sum(since <= arrival for arrival in lane.arrivals)
            lane.rate = (count - 1) / max(age, 1) if age < self.now - since else count / (self.now - since)
