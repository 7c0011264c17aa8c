"""The closed loop: every frame ends once, time adds up, sizes follow what is told and what the network carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.client.pacing import Pacer
from stretto.core.bandwidth import constant, in_steps
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.core.view import Planner, View
from stretto.planners.clockwork import Clockwork
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.network.clients import Adaptation, NetworkClient, Sending
from stretto.sim.network.run import simulate_network
from stretto.sim.network.sizes import answered_accuracy
from stretto.sim.network.strategies import data_adaptations
from tests.sim.network.ladder import client, ladder

MS = 1_000_000
LARGE = Sending(Adaptation.FIXED, "large")


def test_every_frame_ends_once_and_times_add_up() -> None:
    clients = [client(2e6, delay_ns=3 * MS, back_ns=2 * MS, jitter=0.2, joins_s=0.3 * n) for n in range(4)]
    result = simulate_network(ladder(), Jellyfish(), clients, seconds=6, seed=3)
    frames = result.frames
    counts = np.bincount(frames["client"])
    assert all(abs(counts[number] - (6 - 0.3 * number) * 20) <= 1 for number in range(4))
    assert sum(result.summary.outcomes.values()) == len(frames) == result.summary.frames
    assert (frames["outcome"] >= 0).all()
    came = frames[frames["arrived_ns"] >= 0]
    assert (came["sent_ns"] >= came["made_ns"]).all()
    assert np.allclose(came["arrived_ns"] - came["sent_ns"], came["bytes"] / 2e6 * 1e9 + 3 * MS, atol=2)
    assert (came["ended_ns"] >= came["arrived_ns"]).all()
    on_time = frames["outcome"] == Outcome.ON_TIME
    late_ns = frames["answered_ns"] - frames["made_ns"] - 100 * MS
    assert (late_ns[on_time] <= 0).all()
    assert result.server.summary.submitted == len(came)


def test_same_seed_same_bytes() -> None:
    clients = [client(in_steps([3e6, 1e6]), jitter=0.1, frame_spread=0.2) for _ in range(3)]
    one, two, other = (
        simulate_network(ladder(), Jellyfish(), clients, seconds=4, seed=seed).frames.tobytes() for seed in (1, 1, 2)
    )
    assert one == two != other


def test_frames_go_one_after_the_other_and_expire_at_the_client() -> None:
    """A fixed size that needs twice the link: what waits beyond its deadline is given up before it is sent."""
    result = simulate_network(
        ladder(), Clockwork({"see": "large"}, filling=True), [client(80_000 * 10, sending=LARGE)], seconds=5
    )
    frames = result.frames
    sent = frames[frames["sent_ns"] >= 0]
    assert (np.diff(sent["sent_ns"]) >= 100 * MS - 2).all()
    assert result.summary.dropped_at_client == len(frames) - len(sent) > 20
    assert (sent["sent_ns"] - sent["made_ns"] < 100 * MS).all()


def test_sizes_follow_the_network() -> None:
    """A network twenty times as slow: the client is told, and sends, less; and more again."""
    trace = in_steps([8e6, 8e6, 8e6, 4e5, 4e5, 4e5])
    result = simulate_network(ladder(), Jellyfish(), [client(trace)], seconds=12, seed=1)
    frames = result.frames
    second = frames["made_ns"] // 10**9 % 6
    assert frames["size"][second == 2].min() == 2
    assert frames["size"][second == 5].max() == 0
    assert result.summary.miss_rate < 0.05
    estimates = result.estimates[result.estimates[:, 0] % 6e9 == 3e9]
    assert np.allclose(estimates[:, 2], 8e6, rtol=0.05)


def test_the_deadline_is_what_the_network_leaves() -> None:
    """30 ms of network in 100 leave room for the large model (24 ms); 80 ms do not, and it is dropped, not run late."""
    fits, does_not = (
        simulate_network(
            ladder(),
            Clockwork({"see": "large"}, filling=True),
            [client(80_000 / second, fps=5, sending=LARGE)],
            seconds=4,
        ).summary
        for second in (0.030, 0.080)
    )
    assert fits.miss_rate == 0
    assert does_not.miss_rate == 1
    assert does_not.outcomes["late"] == 0


def test_clients_come_and_go() -> None:
    clients = [client(joins_s=1.0, leaves_s=3.0), client(joins_s=2.0)]
    result = simulate_network(ladder(), Jellyfish(), clients, seconds=8)
    made = [result.frames["made_ns"][result.frames["client"] == number] / 1e9 for number in (0, 1)]
    assert made[0].min() >= 1.0 and made[0].max() < 3.0 and made[1].min() >= 2.0 and made[1].max() > 7.9
    last = result.plans[-1].plan
    assert len(last.routes[0].targets) <= 2
    assert result.summary.miss_rate < 0.02


def test_accuracy_is_of_the_smaller_size() -> None:
    served = ladder()
    assert answered_accuracy(served, [0, 2, 1], [2, 0, 1]).tolist() == [0.5, 0.5, 0.7]


def test_accuracy_is_what_was_measured_of_frames_made_larger() -> None:
    """A variant that never saw such frames does worse with them than the small one (54% and not 90% in the zoo); who
    plans by simulation must see that.
    """
    plain = ladder()
    variants = plain.applications[0].variants
    large = replace(variants[2], accuracy_by_size=((variants[0].input_size, 0.1),))
    served = Deployment((replace(plain.applications[0], variants=(*variants[:2], large)),), plain.workers)
    assert answered_accuracy(served, [0, 1, 2, 0], [2, 2, 2, 1]).tolist() == [0.1, 0.7, 0.9, 0.5]
    slow = [client(3e5, sending=Sending(Adaptation.BANDWIDTH)) for _ in range(2)]
    planner = Clockwork({"see": "large"}, filling=True)
    assert simulate_network(served, planner, slow, seconds=3).summary.accuracy == pytest.approx(0.1)
    assert simulate_network(plain, planner, slow, seconds=3).summary.accuracy == pytest.approx(0.5)
    with pytest.raises(StrettoError, match="accuracy by size"):
        replace(large, accuracy_by_size=(((1,), 1.1),))


def test_a_session_is_followed_as_it_is_served_and_a_bare_planner_as_published() -> None:
    """A planner that knows no networks is shown what they leave of SLOs, by a server and here alike."""
    seen: dict[bool, set[int]] = {True: set(), False: set()}

    def noting(is_served: bool) -> Planner:
        planner = Clockwork({"see": "small"}, filling=True)

        def plan(view: View) -> Plan:
            seen[is_served].add(view.deployment.applications[0].slo_ns)
            return planner(view)

        return plan

    far = [client(4e6, delay_ns=20 * MS, back_ns=20 * MS) for _ in range(2)]
    served = simulate_network(ladder(), Session(noting(True)), far, seconds=3)
    simulate_network(ladder(), noting(False), far, seconds=3)
    assert seen[False] == {100 * MS}
    assert {100 * MS} < seen[True] and 50 * MS < min(seen[True]) < 62 * MS
    doors = [plan.plan.lanes[0].capacity for plan in served.plans]
    assert doors[-1] < doors[0], "the door is as wide as what is left allows"
    knows = simulate_network(ladder(), Session(noting(True), knows_networks=True), far, seconds=3)
    assert knows.plans[-1].plan.lanes[0].capacity == doors[0]


def test_doors_refuse_nobody_whom_a_planner_with_networks_has_reckoned_with() -> None:
    """They were as wide as the slowest networks allow, for clients of quick ones too: 6% were refused, live as well."""
    clients = [client(1e6 if number < 2 else 8e6, fps=15, joins_s=0.1 * number) for number in range(8)]
    bare, served = (
        simulate_network(ladder(), planner, clients, seconds=8, seed=3)
        for planner in (Jellyfish(), Session(Jellyfish(), knows_networks=True))
    )
    assert bare.summary.miss_rate < 0.005
    assert served.summary.outcomes["dropped_overload"] == 0
    assert served.summary.miss_rate < 0.005


def test_who_floods_is_refused_at_the_door_of_a_server() -> None:
    """Where clients wait in the same lanes nobody may hold more than a share; published systems have no such door."""
    flood = client(5e8, fps=2_000, sending=Sending(Adaptation.FIXED, "small"))
    modest = client(sending=Sending(Adaptation.FIXED, "small"))
    planner = Clockwork({"see": "small"}, filling=True)
    served = simulate_network(ladder(1), Session(planner), [flood, modest], seconds=4)
    bare = simulate_network(ladder(1), planner, [flood, modest], seconds=4)
    came = [int((result.frames["arrived_ns"] >= 0).sum()) for result in (served, bare)]
    assert bare.server.summary.submitted == came[1]
    assert served.server.summary.submitted < came[0] / 2
    assert served.summary.outcomes["dropped_overload"] > came[0] / 2
    assert (served.frames["answered_ns"][served.frames["arrived_ns"] >= 0] > 0).all()
    assert served.summary.clients[1].miss_rate < bare.summary.clients[1].miss_rate


def test_a_client_that_is_refused_again_and_again_holds_back_as_a_live_one_does() -> None:
    """Then it sends one small frame each half second, until it is answered again."""
    floods = [client(5e8, fps=2_000) for _ in range(4)]
    served = simulate_network(ladder(1), Session(Clockwork({"see": "small"}, filling=True)), floods, seconds=4)
    frames = served.frames
    sent, held = frames["arrived_ns"] >= 0, frames["arrived_ns"] < 0
    assert (frames["outcome"][held] == Outcome.DROPPED_EXPIRED).all() and held.sum() == served.summary.dropped_at_client
    assert held.sum() > sent.sum(), "most of what it makes is not sent"
    assert sent[frames["made_ns"] > 3 * 10**9].any(), "but it tries"
    assert sum(served.summary.outcomes.values()) == len(frames)


@pytest.mark.parametrize("around_ms", [0.0, 4.0])
def test_simulated_clients_decide_as_the_shipped_client_does(around_ms: float) -> None:
    """The client's own `Pacer`, told by hand all that happened to the frames of a run, chooses the sizes of the run."""
    trace = in_steps([4e6, 6e5, 2e6, 9e5, 3e6, 2e5])
    half_ns = round(around_ms * MS / 2)
    cameras = [client(trace.shifted(n * 10**9), delay_ns=half_ns, back_ns=half_ns, jitter=0.1) for n in range(3)]
    result = simulate_network(ladder(), served_session("jellyfish"), cameras, seconds=12)
    assert len(result.plans) > 3
    for number in range(3):
        frames = result.frames[result.frames["client"] == number]
        assert len(set(frames["size"][frames["size"] >= 0].tolist())) >= 2
        check_against_pacer(frames, half_ns)


def check_against_pacer(frames: np.ndarray, half_ns: int) -> None:  # type: ignore[type-arg]
    """No size is larger than the shipped client would send, whatever it was told; and frames go one at a time."""
    pacer = Pacer(0, 100 * MS, [(64, 64), (128, 128), (256, 256)], (5_000.0, 20_000.0, 80_000.0))
    pacer.went(2 * half_ns)
    events = []
    for frame in frames:
        events.append((int(frame["made_ns"]), 1, frame))
        if frame["sent_ns"] >= 0:
            events.append((int(frame["sent_ns"]), 2, frame))
        if frame["arrived_ns"] >= 0:
            events.append((int(frame["arrived_ns"]) + half_ns, 0, frame))
            events.append((int(frame["answered_ns"]), 3, frame))
    on_the_way = 0
    for at_ns, what, frame in sorted(events, key=lambda event: event[:2]):
        if what == 0:
            on_the_way -= 1
            pacer.acknowledged(at_ns, int(frame["bytes"]), at_ns - int(frame["sent_ns"]))
        elif what == 1:
            pacer.made(at_ns)
        elif what == 2:
            on_the_way += 1
            size = pacer.size_for(at_ns, int(frame["made_ns"]) + 100 * MS - at_ns)
            assert size is not None and frame["size"] <= {64: 0, 128: 1, 256: 2}[size[0]]
            pacer.sent([(64, 64), (128, 128), (256, 256)][frame["size"]], int(frame["bytes"]))
        else:
            known_ns = int(frame["arrived_ns"]) + half_ns
            if frame["outcome"] <= Outcome.LATE:
                pacer.answered(at_ns, at_ns - known_ns, {})
            else:
                is_overload = frame["outcome"] == Outcome.DROPPED_OVERLOAD
                pacer.refused(at_ns, is_overload, {}, int(frame["made_ns"]) + 100 * MS - known_ns)
        assert on_the_way in (0, 1)


def test_clients_are_told_anew_also_where_nobody_plans() -> None:
    """A planner that plans once is asked once, here as live; what its plan means for a client changes with networks."""
    calls = []
    planner = served_session("priced").planner

    def once(view: View) -> Plan:
        calls.append(view.now_ns)
        return planner(view)

    slower = [client(in_steps([8e6, 8e6, 8e6, 8e6, 4e5, 4e5, 4e5, 4e5]))]
    result = simulate_network(ladder(), Session(once), slower, seconds=8, replan_s=None)
    assert calls == [0]
    made_s, size = result.frames["made_ns"] / 1e9, result.frames["size"]
    assert set(size[(made_s > 2) & (made_s < 4)].tolist()) == {2}
    assert set(size[made_s > 6].tolist()) == {0}
    known = result.estimates[result.estimates[:, 0] > 7 * 10**9, 2]
    assert len(known) and known.max() < 5e5, "what the server knows of a network is kept whoever plans"


@pytest.mark.parametrize("name", data_adaptations("middle"))
def test_strategies_send_by_their_rule(name: str) -> None:
    strategy = data_adaptations("middle")[name]
    clients = [client(1.8e6, sending=strategy.sends) for _ in range(2)]
    frames = simulate_network(ladder(), strategy.plans(Jellyfish()), clients, seconds=4).frames
    settled = frames[frames["made_ns"] > 10**9]
    expected = {"DA_off": 1, "DA_bw CB 50%": 2, "DA_bw CB 75%": 2, "DA_slo CB 50%": 2, "DA_slo CB 75%": 1}
    assert set(settled["size"].tolist()) == {expected[name]}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: NetworkClient("see", 0, constant(1e6)), "frames a second"),
        (lambda: client(joins_s=2, leaves_s=1), "leaves after"),
        (lambda: client(frame_ratio=0), "as large as expected"),
        (lambda: Sending(Adaptation.FIXED), "fixed size"),
        (
            lambda: simulate_network(ladder(), Jellyfish(), [NetworkClient("other", 5, constant(1e6))], seconds=1),
            "other",
        ),
        (lambda: simulate_network(ladder(), Jellyfish(), [], seconds=1), "between 1 and"),
        (lambda: simulate_network(ladder(), Jellyfish(), [client(fps=10_000)], seconds=86_400), "frames"),
    ],
)
def test_refused_with_a_reason(make: object, reason: str) -> None:
    with pytest.raises(StrettoError, match=reason):
        make()  # type: ignore[operator]


def test_cameras_whose_frames_are_smaller_than_anybody_expected_are_mapped_at_once() -> None:
    """JPEGs of a fifth of the raw numbers, which this network would not carry: once the ratio began at 1, moved by an
    eighth with each probe of a client that was mapped nowhere, and a fifth of all frames was missed.
    """
    clients = [client(30_000.0, fps=15.0, frame_ratio=0.2, joins_s=0.1 + 0.7 * number) for number in range(4)]
    assert simulate_network(ladder(), Jellyfish(), clients, seconds=6).summary.miss_rate < 0.01
