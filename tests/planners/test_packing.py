"""Squishy bin packing: loads covered, duty cycles and memory held, and node counts beside exhaustive search."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.planners.packing import Node, Session, pack, pack_workers, saturated_batch

PLENTY = 2**40


def session(
    alpha_ms: float, beta_ms: float, slo_ms: float, rate: float, memory: int = 0, dynamic: int = 0, largest: int = 64
) -> Session:
    profile = LatencyProfile.linear(alpha_ms, beta_ms, largest)
    return Session(profile.table_ns[Quantile.P95], round(slo_ms * NS_PER_MS), rate, memory, dynamic)


@st.composite
def sessions(draw: st.DrawFn, most: int = 8) -> list[Session]:
    made = []
    for _ in range(draw(st.integers(1, most))):
        alpha_ms, beta_ms = draw(st.floats(0.1, 10)), draw(st.floats(0, 30))
        slo_ms = (alpha_ms + beta_ms) * draw(st.floats(1.001, 12))
        rate = draw(st.floats(0.01, 2000))
        memory, dynamic = draw(st.integers(0, 40)), draw(st.integers(0, 40))
        made.append(session(alpha_ms, beta_ms, slo_ms, rate, memory, dynamic))
    return made


def served(nodes: tuple[Node, ...], count: int) -> list[float]:
    rates = [0.0] * count
    for node in nodes:
        for part in node.parts:
            rates[part.session] += part.rate
    return rates


def check_nodes(nodes: tuple[Node, ...], given_sessions: list[Session], memory_bytes: int) -> None:
    """What every node promises: room for all, batches that keep up with the rate, and an end within the SLO."""
    for node in nodes:
        members = [given_sessions[part.session] for part in node.parts]
        busy_ns = sum(int(member.latency_ns[part.batch]) for member, part in zip(members, node.parts, strict=True))
        assert busy_ns <= node.duty_ns * (1 + 1e-9)
        assert node.occupancy == pytest.approx(busy_ns / node.duty_ns)
        assert len({part.session for part in node.parts}) == len(node.parts)
        need = sum(member.memory_bytes for member in members)
        assert need + max(member.dynamic_memory_bytes for member in members) <= memory_bytes
        for member, part in zip(members, node.parts, strict=True):
            assert part.batch >= part.rate * node.duty_ns / 1e9 - 1e-6
            if 2 * member.latency_ns[1] > member.slo_ns:
                assert len(node.parts) == 1  # it cannot wait for anybody
            else:
                assert node.duty_ns + member.latency_ns[part.batch] <= member.slo_ns * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_loads_are_covered_and_cycles_hold(given_sessions: list[Session]) -> None:
    nodes = pack(given_sessions, memory_bytes=80)
    assert served(nodes, len(given_sessions)) == pytest.approx([one.rate for one in given_sessions], rel=1e-6)
    check_nodes(nodes, given_sessions, 80)


@settings(max_examples=40, deadline=None)
@given(sessions(most=6), st.integers(6, 24))
def test_a_given_number_of_workers_is_used_in_proportion_to_the_rates(
    given_sessions: list[Session], workers: int
) -> None:
    nodes = pack_workers(given_sessions, 80, workers)
    assert len(nodes) == workers
    assert all(node.parts for node in nodes)
    shares = np.array(served(nodes, len(given_sessions))) / [one.rate for one in given_sessions]
    assert shares == pytest.approx(np.full(len(shares), shares[0]), rel=1e-6)


def test_saturated_batch() -> None:
    assert saturated_batch(session(1.053, 5.072, 25, 1)) == 7  # Symphony table 4, no coordination
    assert saturated_batch(session(1, 4, 16, 1)) == 4  # 2·8 ms is just within
    assert saturated_batch(session(1, 4, 6, 1)) == 1  # no second batch could wait
    with pytest.raises(StrettoError, match="single query"):
        saturated_batch(session(1, 4, 4.9, 1))


def test_full_workers_and_a_residue() -> None:
    rate = 2.5 * 4 / 0.008
    nodes = pack([session(1, 4, 16, rate)], PLENTY)
    assert [node.parts[0].batch for node in nodes[:2]] == [4, 4]
    assert [node.duty_ns for node in nodes[:2]] == [8e6, 8e6]
    assert nodes[2].parts[0].rate == pytest.approx(0.5 * 4 / 0.008)
    assert len(nodes) == 3


def test_the_residue_is_the_papers_where_its_batches_fill() -> None:
    """The largest b with l(b) + b/r ≤ SLO: 7 ms + 3/r is all of 22 ms at r = 200/s."""
    (node,) = pack([session(1, 4, 22, 200)], PLENTY)
    assert node.parts[0].batch == 3
    assert node.duty_ns == pytest.approx(15e6)
    assert node.occupancy == pytest.approx(7 / 15)


def test_less_than_one_query_per_cycle() -> None:
    """The paper's rule finds no batch (5 ms + 1 s is beyond 22 ms); the cycle is the longest that holds."""
    (node,) = pack([session(1, 4, 22, 1)], PLENTY)
    assert node.parts[0].batch == 1
    assert node.duty_ns == pytest.approx(17e6)


def test_merged_batches_shrink_to_the_shorter_cycle() -> None:
    patient, hasty = session(1, 4, 60, 150), session(1, 2, 12, 10)
    (node,) = pack([patient, hasty], PLENTY)
    assert node.duty_ns == pytest.approx(9e6)  # 12 − (1 + 2) ms
    assert {part.session: part.batch for part in node.parts} == {0: math.ceil(150 * 0.009), 1: 1}


def test_a_residue_joins_the_fullest_node_that_takes_it() -> None:
    """Cycles of 10 ms: with 6 and 5 ms taken on two nodes, 3 ms go to the first."""
    nodes = pack([session(0, 5, 15, 0.1), session(0, 6, 16, 0.1), session(0, 3, 13, 0.1)], PLENTY)
    assert [{part.session for part in node.parts} for node in nodes] == [{1, 2}, {0}]


def test_memory_keeps_sessions_apart() -> None:
    pair = [session(1, 4, 60, 10, memory=30, dynamic=40), session(1, 4, 60, 10, memory=30, dynamic=20)]
    assert len(pack(pair, 100)) == 1
    assert len(pack(pair, 99)) == 2
    with pytest.raises(StrettoError, match="more memory"):
        pack(pair, 69)


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    first, rest = items[0], partitions(items[1:])
    grown = [[*p[:k], [first, *p[k]], *p[k + 1 :]] for p in rest for k in range(len(p))]
    return grown + [[[first], *p] for p in rest]


def fewest_nodes(alone: list[Node], given_sessions: list[Session]) -> int:
    """Over all ways to group residues: a group fits where its batches, shrunk to its shortest cycle, fit that cycle."""

    def fits(group: list[int]) -> bool:
        duty_ns = min(alone[k].duty_ns for k in group)
        batches = [max(1, math.ceil(given_sessions[k].rate * duty_ns / 1e9 - 1e-9)) for k in group]
        return sum(int(given_sessions[k].latency_ns[b]) for k, b in zip(group, batches, strict=True)) <= duty_ns

    every = partitions(list(range(len(alone))))
    return min(len(grouping) for grouping in every if all(len(group) == 1 or fits(group) for group in grouping))


def test_node_counts_beside_exhaustive_search() -> None:
    """Best fit is seldom worse than the optimum, and then by one node."""
    draw = np.random.default_rng(7)
    extra = []
    for _ in range(60):
        given_sessions = []
        for _ in range(6):
            alpha_ms, beta_ms = draw.uniform(0.3, 3), draw.uniform(1, 10)
            one = session(alpha_ms, beta_ms, (alpha_ms + beta_ms) * draw.uniform(4, 15), 1.0)
            batch = saturated_batch(one)
            rate = batch / one.latency_ns[batch] * 1e9 * draw.uniform(0.05, 0.6)
            given_sessions.append(Session(one.latency_ns, one.slo_ns, rate))
        alone = [pack([one], PLENTY)[0] for one in given_sessions]
        extra.append(len(pack(given_sessions, PLENTY)) - fewest_nodes(alone, given_sessions))
    assert min(extra) >= 0
    assert max(extra) <= 1
    assert extra.count(0) >= 48


def test_one_session_fills_all_workers_alike() -> None:
    nodes = pack_workers([session(1.053, 5.072, 25, 100)], PLENTY, 8)
    assert [node.parts[0].batch for node in nodes] == [7] * 8
    assert [node.parts[0].rate for node in nodes] == pytest.approx([nodes[0].parts[0].rate] * 8, rel=1e-6)


def test_spare_workers_share_the_busiest_nodes() -> None:
    """Three equal sessions saturate three workers, and their residues would need two more; a fourth still works."""
    three = [session(1, 4, 16, 100) for _ in range(3)]
    nodes = pack_workers(three, PLENTY, 4)
    assert sorted(part.session for node in nodes for part in node.parts) == [0, 0, 1, 2]
    assert served(nodes, 3) == pytest.approx([4 / 0.008] * 3, rel=1e-6)
    assert len({node.parts[0].rate for node in nodes if node.parts[0].session == 0}) == 1
    assert max(len(node.parts) for node in pack_workers(three, PLENTY, 5)) == 2


def test_too_few_workers_take_turns() -> None:
    """Each session keeps a third of a worker at any rate above zero, so twenty do not pack onto two workers."""
    given_sessions = [session(1, 4, 20, rate) for rate in range(1, 21)]
    nodes = pack_workers(given_sessions, PLENTY, 2)
    assert sorted(part.session for node in nodes for part in node.parts) == list(range(20))
    busy = [sum(part.rate for part in node.parts) for node in nodes]
    assert max(busy) <= 1.1 * min(busy)
    roomy = [session(1, 4, 20, 1, memory=10) for _ in range(20)]
    assert len(pack_workers(roomy, 100, 2)) == 2
    with pytest.raises(StrettoError, match="does not hold all"):
        pack_workers(roomy, 90, 2)
