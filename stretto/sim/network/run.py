"""The closed loop: clients make and send frames, the dispatcher serves them, and answers say what to send next.

The server's half is the one that serves: the compiled loop and the dispatcher, the planning session, the registry of
clients, who of them is let in and what they are told. Here are the clients and their links. Between two events of a
client the compiled loop runs on its own. At one instant what clients do comes before what workers do.

A session is followed as a server follows it; a bare planner as published systems are: nobody is refused at the door,
and SLOs are shown to it as they are, whatever networks leave of them.

Every frame ends in exactly one outcome: given up by its client (its deadline passed before its first byte left, or the
client was refused just now and holds back), refused because its client asks beyond its share, or one of the
dispatcher's. That is checked at the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import FORGET_S, Client, Clients, Known
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_S
from stretto.core.view import Planner
from stretto.planning.door import let_in
from stretto.planning.session import Session
from stretto.planning.telling import GATHER_S, TELL_S, places, tell_all
from stretto.sim.network.clients import NetworkClient
from stretto.sim.network.result import FRAME, NetworkResult, PlanAt, summary_of
from stretto.sim.network.sizes import Sizes
from stretto.sim.network.state import ClientState, Word
from stretto.sim.service import Service
from stretto.sim.simulator import Simulation

MAX_FRAMES = 50_000_000
MAX_CLIENTS = 100_000
NEVER = 2**62
ACKNOWLEDGED, FREE, ARRIVED, ANSWERED = range(4)  # what happens to a frame; of the second, to its client's link


@dataclass(frozen=True)
class _NoArrivals:
    """Frames come by `submit`."""

    rates: tuple[float, ...]

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        return iter(())

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.rates


class NetworkRun:
    """One run in progress; `simulate_network` is the usual way in."""

    def __init__(
        self,
        deployment: Deployment,
        planner: Planner | Session,
        clients: Sequence[NetworkClient],
        *,
        seconds: float,
        seed: int = 1,
        service: Service | None = None,
        delays: Delays | None = None,
        replan_s: float | None = 0.5,
        warmup_s: float = 0.0,
        correction: float = 0.0,
        replans_on_change: bool = True,
        expected_rates: Sequence[float] | None = None,
    ) -> None:
        if not 1 <= len(clients) <= MAX_CLIENTS:
            raise StrettoError(f"there must be between 1 and {MAX_CLIENTS} clients, not {len(clients)}")
        if sum(client.fps for client in clients) * seconds > MAX_FRAMES:
            raise StrettoError(f"these clients make more than {MAX_FRAMES} frames; take fewer, or a shorter run")
        if replan_s is not None and not 0.001 <= replan_s <= 86_400:
            raise StrettoError(f"plans are made each millisecond to each day, not each {replan_s} s")
        self.deployment, self.specs, self.seed = deployment, tuple(clients), seed
        self.seconds, self.warmup_s = seconds, warmup_s
        names = [application.name for application in deployment.applications]
        rates = np.zeros(len(names))
        for client in clients:
            if client.application not in names:
                raise StrettoError(f"there is no application {client.application}; there are {', '.join(names[:20])}")
            rates[names.index(client.application)] += client.fps
        self.simulation = Simulation(
            deployment,
            planner,
            _NoArrivals(tuple(rates.tolist())),
            seconds=seconds,
            seed=seed,
            service=service,
            delays=delays,
            warmup_s=warmup_s,
            record=True,
            expected_rates=expected_rates,
            correction=correction,
        )
        self.registry = Clients()
        self.clients = tuple(self._client(client, number, names) for number, client in enumerate(clients))
        self.frames = _frames(clients, seconds, seed)
        self._made, self._client_of = self.frames["made_ns"].tolist(), self.frames["client"].tolist()
        self._size, self._bytes, self._sent, self._arrived = ([-1] * len(self.frames) for _ in range(4))
        self._ended: dict[int, tuple[Outcome, int]] = {}  # frames that the dispatcher did not see: how and when
        self._sizes_random = np.random.default_rng([seed, 0xF2A3E])
        self._replan_ns = None if replan_s is None else round(replan_s * NS_PER_S)
        self._replans_on_change = replans_on_change
        self._has_doors = self.simulation.session.has_doors
        self._left_ns: tuple[int, ...] | None = None  # of SLOs, by networks
        self._looks_at_clients = True  # the planner did, when it was last asked
        self._askers: dict[int, Known | None] = {}  # record of the server → whose it is
        self._events: list[tuple[int, int, int, Word | None]] = []  # time, kind, frame, what is heard of it
        self._said: dict[int, list[float]] = {}  # bandwidths that a frame reports when it comes
        self._waiting: dict[int, int] = {}  # record of the server → frame, of those that have not ended
        self._record_of = np.full(len(self.frames), -1, np.int64)
        self._slot: dict[int, int] = {}  # client → slot at the server
        self._told: dict[
            int, tuple[int | None, bool]
        ] = {}  # client → place of its size, and whether it is mapped nowhere
        self.plans = [PlanAt(0, self.simulation.in_force.plan)]
        self._estimates: list[tuple[int, int, float]] = []

    def _client(self, spec: NetworkClient, number: int, names: list[str]) -> ClientState:
        application = names.index(spec.application)
        slo_ns = spec.slo_ns or self.deployment.applications[application].slo_ns
        sizes = Sizes.of(self.deployment, application)
        return ClientState(spec, sizes, application, slo_ns, f"client-{number}")

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float], None] | None = None) -> NetworkResult:
        made = self._made
        end_ns = int(self.seconds * NS_PER_S)
        next_plan = NEVER if self._replan_ns is None else min(self._replan_ns, end_ns)
        next_tell = tell_ns = round(TELL_S * NS_PER_S)
        gather_ns = round(GATHER_S * NS_PER_S)
        number, tenth = 0, 0
        while True:
            made_ns = made[number] if number < len(made) else NEVER
            event_ns = self._events[0][0] if self._events else NEVER
            is_going = number < len(made) or bool(self._events)  # else clients have nothing to hear any more
            plan_ns = next_plan if is_going or self._waiting else NEVER
            at_ns = min(made_ns, event_ns, plan_ns, next_tell if is_going else NEVER)
            if at_ns == NEVER:
                if not self._waiting:
                    break
                self._run_to(NEVER)  # nothing comes from clients any more
                if not self._events and self._waiting:
                    break  # the dispatcher holds them, and nothing would change that
                continue
            if at_ns > self.simulation.now_ns:
                self._run_to(at_ns)
                if self._events and self._events[0][0] < at_ns:
                    continue  # an answer was on its way back before
            if event_ns == at_ns:
                self._follow(*heapq.heappop(self._events))
            elif made_ns == at_ns:
                self._make(at_ns, number)
                number += 1
            else:
                self.registry.forget_before(at_ns - round(FORGET_S * NS_PER_S))
                if next_plan == at_ns:
                    self._plan(at_ns)
                    next_plan = at_ns + (self._replan_ns or NEVER)
                if next_tell == at_ns:
                    self._tell(at_ns)
                    next_tell = at_ns + tell_ns
                if at_ns > end_ns + 100 * NS_PER_S:
                    break
            is_changed = self._replans_on_change and self._looks_at_clients and self.registry.is_changed
            if is_changed and self._replan_ns is not None:
                next_plan = min(next_plan, at_ns + gather_ns)
            if progress is not None and number * 10 // max(len(made), 1) > tenth:
                tenth += 1
                progress(tenth / 10)
        return self._result()

    def _run_to(self, at_ns: int) -> None:
        """Let the server run, and send on their way the answers that it had."""
        simulation = self.simulation
        simulation.run_to(at_ns)
        if simulation.dispatcher.waiting_count + simulation.dispatcher.running == len(self._waiting):
            return
        outcome, end_ns = simulation.records["outcome"], simulation.records["end_ns"]
        for record in [record for record in self._waiting if outcome[record] >= 0]:
            frame = self._waiting.pop(record)
            self.registry.ended(self._askers.pop(record))
            self._answer(int(end_ns[record]), frame, Outcome(outcome[record]))

    def _answer(self, now_ns: int, frame: int, outcome: Outcome) -> None:
        """An answer, or a refusal, goes on its way back with what its client should send."""
        client = self._client_of[frame]
        word = Word(outcome, *self._told.get(client, (None, False)))
        heapq.heappush(self._events, (now_ns + self.specs[client].back_ns, ANSWERED, frame, word))

    def _make(self, now_ns: int, frame: int) -> None:
        """A client makes a frame, which waits for its link."""
        client = self.clients[self._client_of[frame]]
        if not client.takes(now_ns):
            self._ended[frame] = Outcome.DROPPED_EXPIRED, now_ns
            return
        client.open += 1
        client.waiting.append(frame)
        if not client.is_sending:
            self._send(now_ns, client)

    def _send(self, now_ns: int, client: ClientState) -> None:
        """The link takes the first frame that waits and is worth it, at a size of the client's choice."""
        while client.waiting:
            frame = client.waiting.popleft()
            place = client.place(now_ns, self._made[frame] + client.slo_ns - now_ns)
            if place is not None:
                self._send_at(now_ns, client, frame, place)
                return
            client.open -= 1
            self._ended[frame] = Outcome.DROPPED_EXPIRED, now_ns

    def _send_at(self, now_ns: int, client: ClientState, frame: int, place: int) -> None:
        spec = client.spec
        size = client.sizes.frame_bytes[place] * spec.frame_ratio
        if spec.frame_spread > 0:
            size *= self._spread(spec.frame_spread)
        frame_bytes = max(1, round(size))
        client.is_sending = True
        client.sent(place, frame_bytes)
        self._size[frame], self._bytes[frame], self._sent[frame] = client.sizes.variants[place], frame_bytes, now_ns
        self._said[frame] = client.to_report()
        through_ns = now_ns + spec.bandwidth.time_to_send(now_ns, frame_bytes)
        arrived_ns = through_ns + spec.delay_ns
        known_ns = arrived_ns + spec.back_ns
        gives_up_ns = client.gives_up_ns(self._made[frame])
        if gives_up_ns is not None and arrived_ns > gives_up_ns:
            # The connection is closed, the rest of the frame is not sent, and the network is known to be slow.
            client.open -= 1
            self._ended[frame] = Outcome.DROPPED_EXPIRED, gives_up_ns
            known_ns = gives_up_ns
        else:
            self._arrived[frame] = arrived_ns
            heapq.heappush(self._events, (arrived_ns, ARRIVED, frame, None))
        heapq.heappush(self._events, (known_ns, ACKNOWLEDGED, frame, None))
        heapq.heappush(self._events, (known_ns if client.is_shipped else through_ns, FREE, frame, None))

    def _follow(self, now_ns: int, what: int, frame: int, word: Word | None) -> None:
        """Something happens to a frame on its way."""
        client = self.clients[self._client_of[frame]]
        if what == ACKNOWLEDGED:
            client.acknowledged(now_ns, self._bytes[frame], now_ns - self._sent[frame])
        elif what == FREE:
            client.is_sending = False
            self._send(now_ns, client)
        elif what == ARRIVED:
            self._arrive(now_ns, frame)
        elif word is not None:
            client.hear(now_ns, self._made[frame], self._arrived[frame] + client.spec.back_ns, word)

    def _spread(self, spread: float) -> float:
        sigma2 = float(np.log1p(spread * spread))
        return float(np.exp(self._sizes_random.normal(-sigma2 / 2, sigma2**0.5)))

    def _arrive(self, now_ns: int, frame: int) -> None:
        """A frame has come, with what its client measured before it was sent; it is due when its answer must leave."""
        number = self._client_of[frame]
        client = self.clients[number]
        measured = self._said.pop(frame)
        slot = self._slot[number] = self.registry.slot_of(now_ns, client.identity, client.spec.application)
        expected = self.deployment.variants[self._size[frame]].frame_bytes
        self.registry.asked(
            now_ns,
            slot,
            bytes_per_s=len(measured) / sum(1.0 / each for each in measured) if measured else None,
            delay_ns=client.spec.delay_ns + client.spec.back_ns,
            slo_ns=client.slo_ns,
            frame_ratio=self._bytes[frame] / expected,
            said_rate=client.pacing.rate(now_ns),
        )
        dispatcher = self.simulation.dispatcher
        if self._has_doors and not let_in(
            now_ns, dispatcher.plan, client.application, self.registry, slot, 1, dispatcher.lane_length
        ):
            self._ended[frame] = Outcome.DROPPED_OVERLOAD, now_ns
            self._answer(now_ns, frame, Outcome.DROPPED_OVERLOAD)
            return
        deadline_ns = self._made[frame] + client.slo_ns - client.spec.back_ns
        record = self.simulation.submit(client.application, deadline_ns, slot)
        self._record_of[frame] = record
        self._waiting[record] = frame
        self._askers[record] = self.registry.began(slot)

    def _plan(self, now_ns: int) -> None:
        """The planner looks at all clients as the server knows them; what it decides is told with the next answers."""
        seen: tuple[Client, ...] | None = None

        def look() -> tuple[Client, ...]:
            nonlocal seen
            seen = self.registry.to_plan_for(now_ns) if seen is None else seen
            return seen

        self.simulation.replan(look, self._left_ns)
        self._looks_at_clients = seen is not None
        plan, ratio = self.simulation.in_force.plan, self.simulation.dispatcher.latency_ratio()
        self.registry.planned(seen or (), places(plan, self.deployment, seen or (), ratio))
        self._placed(now_ns)

    def _tell(self, now_ns: int) -> None:
        """Clients hear what the plan means for each by now, and the plan what their networks leave to it."""
        simulation = self.simulation
        plan, telemetry = simulation.in_force.plan, simulation.dispatcher.telemetry(now_ns)
        left_ns = tell_all(self.registry, plan, self.deployment, telemetry, self._left_ns)
        if self._has_doors and not simulation.session.knows_networks and left_ns != self._left_ns:
            self._left_ns = left_ns
            simulation.leave_ns(left_ns)
        self._placed(now_ns)
        number_of = {client.identity: number for number, client in enumerate(self.clients)}
        self._estimates += [
            (now_ns, number_of[client.identity], client.network.bytes_per_s)
            for client in self.registry.all(now_ns)
            if client.network.bytes_per_s is not None
        ]

    def _placed(self, now_ns: int) -> None:
        """What is told with the next answers; and the plan, where it is another one."""
        if self.simulation.in_force.plan is not self.plans[-1].plan:
            self.plans.append(PlanAt(now_ns, self.simulation.in_force.plan))
        for number, slot in self._slot.items():
            client, place = self.clients[number], self.registry.place_of(slot)
            if place is None or self.registry.identity_of(slot) != client.identity:  # it was forgotten
                self._told.pop(number, None)
                continue
            names = client.sizes.names
            size = names.index(place.told.variant) if place.told.variant in names else None
            self._told[number] = size, place.is_nowhere

    def _result(self) -> NetworkResult:
        frames, records = self.frames, self.simulation.records
        columns = {"size": self._size, "bytes": self._bytes, "sent_ns": self._sent, "arrived_ns": self._arrived}
        for name, values in columns.items():
            frames[name] = values
        for frame, how_and_when in self._ended.items():
            frames["outcome"][frame], frames["ended_ns"][frame] = how_and_when
        came = np.flatnonzero(self._record_of >= 0)
        rows = records[self._record_of[came]]
        for name in ("variant", "worker", "batch", "outcome"):
            frames[name][came] = rows[name]
        frames["ended_ns"][came] = rows["end_ns"]
        back_ns = np.array([client.back_ns for client in self.specs])[frames["client"]]
        ended = frames["ended_ns"] >= 0
        frames["answered_ns"][ended] = (
            frames["ended_ns"][ended] + np.where(frames["arrived_ns"] >= 0, back_ns, 0)[ended]
        )
        if (frames["outcome"] < 0).any():
            raise StrettoError(f"{(frames['outcome'] < 0).sum()} frames have no outcome; their planner lets them wait")
        server = self.simulation.result()
        estimates = np.array(self._estimates, np.float64).reshape(-1, 3)
        summary = summary_of(frames, self.deployment, server, len(self.specs), self.warmup_s, len(self.plans))
        switches = self.simulation.dispatcher.switches
        return NetworkResult(summary, frames, tuple(self.plans), server, estimates, switches)


def _frames(clients: Sequence[NetworkClient], seconds: float, seed: int) -> NDArray[np.void]:
    """All frames in the order of their making: evenly from a start at random within the first period, with jitter."""
    parts = []
    for number, client in enumerate(clients):
        random = np.random.default_rng([seed, 0xC11E, number])
        until_s = min(seconds, client.leaves_s if client.leaves_s is not None else seconds)
        period_ns = NS_PER_S / client.fps
        first_ns = client.joins_s * NS_PER_S + random.uniform(0, period_ns)
        count = max(0, int(np.ceil((until_s * NS_PER_S - first_ns) / period_ns)))
        made_ns = first_ns + period_ns * np.arange(count)
        if client.jitter > 0:
            made_ns = np.sort(made_ns + random.uniform(0, client.jitter * period_ns, count))
        frames = np.zeros(count, FRAME)
        for name in FRAME.names or ():
            frames[name] = -1
        frames["client"], frames["made_ns"] = number, made_ns.astype(np.int64)
        parts.append(frames[frames["made_ns"] < until_s * NS_PER_S])
    frames = np.concatenate(parts)
    return frames[np.argsort(frames["made_ns"], kind="stable")]


def simulate_network(
    deployment: Deployment, planner: Planner | Session, clients: Sequence[NetworkClient], **rest: object
) -> NetworkResult:
    """Run `seconds` of clients' frames and let all of them end."""
    progress = rest.pop("progress", None)
    return NetworkRun(deployment, planner, clients, **rest).run(progress)  # type: ignore[arg-type]
