"""Sources: sorted chunks in range, the right share for each application and client, and the same bytes every time."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy import stats

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.sim.arrivals import ARRIVAL, CHUNK, Client, Clients, Even, Load, Mix, Source, Weights, Zipf
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import Gamma, Poisson, Process, TwoLevel, Uniform
from stretto.sim.traces import RateTrace

MS = 1_000_000
BURSTY = MarkovianArrivals([[-11, 1], [10, -210]], [[10, 0], [0, 200]])
MIXED = Clients(
    (
        Client("a0", Uniform(), 300.0, deadline_ns=7 * MS, priority=2),
        Client("a2", Gamma(0.2), 200.0),
        Client("a2", BURSTY),
        Client("a1", TwoLevel(10, 100, 1, 1)),
    ),
    {"a2": Mix(deadlines_ns=(5 * MS, 90 * MS))},
)
SOURCES: dict[str, Source] = {
    "poisson": Load(Poisson(), 5000.0, Zipf(0.9), {"a1": Mix(class_shares=(1, 2, 1))}),
    "uniform": Load(Uniform(), 5000.0),
    "gamma": Load(Gamma(0.05), 5000.0, Weights((1, 0, 3))),
    "markovian": Load(BURSTY, 5000.0),
    "two-level": Load(TwoLevel(100, 9000, 1, 1)),
    "trace": Load(RateTrace(np.arange(3.0), np.array([1000.0, 0, 9000]))),
    "clients": MIXED,
    "poisson clients": Clients.alike(20, Client("a1", Poisson(), 200.0)),
}


def deployment(applications: int = 3) -> Deployment:
    variant = (Variant("only", 0.9, (LatencyProfile.linear(1, 1),)),)
    return Deployment(
        tuple(Application(f"a{number}", (number + 1) * 10 * MS, variant) for number in range(applications)), workers(1)
    )


def arrivals_of(source: Source, seconds: float, seed: int = 1, applications: int = 3) -> NDArray[np.void]:
    return np.concatenate([np.empty(0, ARRIVAL), *source.chunks(deployment(applications), seconds, seed)])


@pytest.mark.parametrize("name", SOURCES)
def test_chunks_are_sorted_in_range_and_in_full(name: str) -> None:
    source = SOURCES[name]
    chunks = list(source.chunks(deployment(), 4.0, 3, rows=1000))  # type: ignore[call-arg]
    assert all(len(chunk) == 1000 for chunk in chunks[:-1])
    assert 1 <= len(chunks[-1]) <= 1000
    rows = np.concatenate(chunks)
    assert rows.dtype == ARRIVAL
    assert len(rows) > 2000
    assert (np.diff(rows["time_ns"]) >= 0).all()
    assert rows["time_ns"][0] >= 0
    assert rows["time_ns"][-1] < 4_000_000_000
    assert (rows["deadline_ns"] > rows["time_ns"]).all()


@pytest.mark.parametrize("name", SOURCES)
def test_same_seed_gives_the_same_bytes_whatever_the_chunks(name: str) -> None:
    source = SOURCES[name]
    whole = arrivals_of(source, 4.0)
    assert arrivals_of(source, 4.0).tobytes() == whole.tobytes()
    for rows in (7, 999):
        parts = list(source.chunks(deployment(), 4.0, 1, rows=rows))  # type: ignore[call-arg]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert arrivals_of(source, 4.0, seed=2).tobytes() != whole.tobytes()


@pytest.mark.parametrize("name", SOURCES)
def test_a_longer_run_begins_with_the_shorter_one(name: str) -> None:
    short, long = arrivals_of(SOURCES[name], 1.5), arrivals_of(SOURCES[name], 4.0)
    assert long[long["time_ns"] < 1_500_000_000].tobytes() == short.tobytes()


@pytest.mark.parametrize("name", SOURCES)
def test_expected_rates_are_met(name: str) -> None:
    source = SOURCES[name]
    seconds = 60.5
    came = np.bincount(arrivals_of(source, seconds)["application"], minlength=3) / seconds
    expected = source.expected_rates(deployment(), seconds)
    assert came == pytest.approx(expected, rel=0.1)
    assert all(isinstance(rate, float) for rate in expected)


def test_a_full_chunk_has_the_agreed_size() -> None:
    chunks = [len(chunk) for chunk in Load(Poisson(), 1e6).chunks(deployment(), 0.6, 1)]
    assert chunks[:2] == [CHUNK, CHUNK]
    assert 0 < chunks[2] < CHUNK


def test_defaults_of_a_query() -> None:
    rows = arrivals_of(Load(Uniform(), 3000.0), 1.0)
    assert set(rows["client"].tolist()) == {-1}
    assert set(rows["query_class"].tolist()) == {-1}
    assert set(rows["priority"].tolist()) == {0}
    assert np.array_equal(rows["deadline_ns"] - rows["time_ns"], (rows["application"] + 1) * 10 * MS)


def test_zipf_shares() -> None:
    shares = Zipf(0.9).shares(20)
    assert shares == pytest.approx(np.arange(1, 21) ** -0.9 / (np.arange(1, 21) ** -0.9).sum())
    rows = arrivals_of(Load(Poisson(), 1e5, Zipf(0.9)), 4.0, applications=20)
    came = np.bincount(rows["application"], minlength=20)
    assert stats.chisquare(came, shares * len(rows)).pvalue > 0.01
    assert np.array_equal(Zipf(0).shares(4), Even().shares(4))


@pytest.mark.parametrize("process", [Uniform(), Gamma(0.1)], ids=["uniform", "gamma"])
def test_merged_streams_are_the_streams_sorted(process: Process) -> None:
    """Against the plain way: run each application by itself, then sort all of them."""
    rows = arrivals_of(Load(process, 4000.0, Weights((5, 1, 2))), 3.0)
    alone = []
    for number, seed in enumerate(SeedSequence(1).spawn(4)[0].spawn(3)):
        own = process.at_rate((2500.0, 500.0, 1000.0)[number])
        times = np.concatenate(list(islice(own.blocks(seed, 50_000, 0), 2)))
        stream = np.zeros(int((times < 3_000_000_000).sum()), ARRIVAL)
        stream["time_ns"] = times[: len(stream)]
        stream["application"] = number
        alone.append(stream)
    together = np.concatenate(alone)
    together = together[np.argsort(together["time_ns"], kind="stable")]
    assert len(together) > 5000
    for column in ("time_ns", "application"):
        assert np.array_equal(together[column], rows[column])


def test_streams_of_applications_are_independent_of_each_other() -> None:
    """A weight of zero takes a stream away, and leaves the others their own random numbers."""
    three = arrivals_of(Load(Uniform(), 300.0, Weights((1, 1, 1))), 5.0)
    two = arrivals_of(Load(Uniform(), 200.0, Weights((1, 0, 1))), 5.0)
    assert np.array_equal(two, three[three["application"] != 1])
    first, last = (np.bincount(three["time_ns"][three["application"] == number] // MS % 10) for number in (0, 2))
    assert not np.array_equal(first, last)  # not in step
    rows = arrivals_of(Load(Poisson(), 20_000.0), 20.0)
    counts = np.stack(
        [
            np.bincount(rows["time_ns"][rows["application"] == number] // (20 * MS), minlength=1000)
            for number in range(3)
        ]
    )
    assert np.abs(np.corrcoef(counts) - np.eye(3)).max() < 0.1
    for number in range(3):
        gaps = np.diff(rows["time_ns"][rows["application"] == number]) / 1.5e5
        assert stats.kstest(gaps[:20_000], "expon").pvalue > 0.01


def test_class_and_deadline_mix() -> None:
    mix = {"a1": Mix((0.5, 0.0, 0.3, 0.2), (5 * MS, 50 * MS), (0.25, 0.75)), "a2": Mix(deadlines_ns=(1 * MS, 2 * MS))}
    plain, rows = arrivals_of(Load(Poisson(), 3e4), 4.0), arrivals_of(Load(Poisson(), 3e4, mix=mix), 4.0)
    assert np.array_equal(rows["time_ns"], plain["time_ns"])  # a mix leaves times and applications alone
    assert np.array_equal(rows["application"], plain["application"])
    untouched = rows["application"] == 0
    assert np.array_equal(rows[untouched], plain[untouched])
    mixed = rows[rows["application"] == 1]
    assert np.bincount(mixed["query_class"]) / len(mixed) == pytest.approx([0.5, 0, 0.3, 0.2], abs=0.01)
    assert (mixed["query_class"] != 1).all()
    relative = mixed["deadline_ns"] - mixed["time_ns"]
    assert set(relative.tolist()) == {5 * MS, 50 * MS}
    assert (relative == 5 * MS).mean() == pytest.approx(0.25, abs=0.01)
    even = rows[rows["application"] == 2]
    assert (even["query_class"] == -1).all()
    assert (even["deadline_ns"] - even["time_ns"] == MS).mean() == pytest.approx(0.5, abs=0.01)


def test_clients_keep_their_number_application_deadline_and_priority() -> None:
    rows = arrivals_of(MIXED, 20.0)
    for number, client in enumerate(MIXED.clients):
        own = rows[rows["client"] == number]
        assert set(own["application"].tolist()) == {int(client.application[1])}
        assert set(own["priority"].tolist()) == {client.priority}
        assert len(own) / 20 == pytest.approx(client.own_process().mean_rate(20.0), rel=0.15)
    relative = rows["deadline_ns"] - rows["time_ns"]
    assert set(relative[rows["client"] == 0].tolist()) == {7 * MS}
    assert set(relative[rows["client"] == 2].tolist()) == {5 * MS, 90 * MS}
    assert set(relative[rows["client"] == 3].tolist()) == {20 * MS}


def test_poisson_clients_share_by_their_rates_and_keep_their_own_deadlines() -> None:
    clients = tuple(Client("a1", Poisson(), rate, deadline_ns=round(rate) * MS) for rate in (100.0, 400.0, 1500.0))
    rows = arrivals_of(Clients(clients, {"a1": Mix(deadlines_ns=(3 * MS,))}), 30.0)
    assert np.bincount(rows["client"]) / 30 == pytest.approx([100, 400, 1500], rel=0.05)
    assert np.array_equal(rows["deadline_ns"] - rows["time_ns"], np.array([100, 400, 1500])[rows["client"]] * MS)


def test_many_clients_merge_in_order() -> None:
    rows = arrivals_of(Clients.alike(3000, Client("a1", Gamma(0.5), 5.0)), 2.0)
    assert (np.diff(rows["time_ns"]) >= 0).all()
    assert len(rows) == pytest.approx(30_000, rel=0.05)
    assert len(np.unique(rows["client"])) > 2500


def test_equal_times_come_in_the_order_of_the_clients() -> None:
    rows = arrivals_of(Clients.alike(5, Client("a0", Uniform(10.0, phase=0.0))), 3.0)
    assert np.array_equal(rows["client"], np.tile(np.arange(5), 30))


def test_a_run_without_arrivals_has_no_chunks() -> None:
    assert list(Load(Poisson(1e-9)).chunks(deployment(), 1.0, 1)) == []
    assert list(Load(Gamma(0.5, 1e-9)).chunks(deployment(), 1.0, 1)) == []
    tiny = arrivals_of(Load(Uniform(), 1000.0, Zipf(100)), 2.0)
    assert set(tiny["application"].tolist()) == {0}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Load(Poisson(), -1.0), "rate of a load"),
        (lambda: Load(Poisson(), math.nan), "rate of a load"),
        (lambda: Client("a0", Poisson(), 0.0), "rate of a client"),
        (lambda: Client("a0", Poisson(), 1.0, deadline_ns=0), "deadline of a client"),
        (lambda: Client("a0", Poisson(), 1.0, priority=2**40), "priority"),
        (lambda: Clients(()), "between 1 and"),
        (lambda: Clients.alike(10**9, Client("a0", Poisson())), "between 1 and"),
        (lambda: Zipf(-1.0), "Zipf"),
        (lambda: Zipf(math.nan), "Zipf"),
        (lambda: Weights((0.0, 0.0)), "all of them are zero"),
        (lambda: Weights((1.0, -1.0)), "not negative"),
        (lambda: Weights((1.0, math.inf)), "finite"),
        (lambda: Weights(()), "at least one"),
        (lambda: Mix(class_shares=(0.0,)), "all of them are zero"),
        (lambda: Mix(deadlines_ns=(1, -5)), "deadline of a mix"),
        (lambda: Mix(deadlines_ns=(1, 2), deadline_shares=(1.0,)), "1 shares for 2 deadlines"),
    ],
)
def test_bad_settings_are_refused(make: object, says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("source", "seconds", "seed", "says"),
    [
        (Load(Poisson(), 1.0), 0.0, 1, "seconds"),
        (Load(Poisson(), 1.0), math.nan, 1, "seconds"),
        (Load(Poisson(), 1.0), 1e12, 1, "seconds"),
        (Load(Poisson(), 1e9), 1e6, 1, "more than 1e\\+11 queries"),
        (Load(Poisson(), 1.0), 1.0, -1, "seed"),
        (Load(Poisson(), 1.0, Weights((1.0, 2.0))), 1.0, 1, "2 popularity weights for 3 applications"),
        (Load(Poisson(), 1.0, mix={"zz": Mix()}), 1.0, 1, "mix names application 'zz'"),
        (Clients((Client("zz", Poisson()),)), 1.0, 1, "client 0 calls application 'zz'"),
    ],
)
def test_bad_runs_are_refused_at_once(source: Source, seconds: float, seed: int, says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        source.chunks(deployment(), seconds, seed)  # before the first chunk is asked for


def test_a_class_mix_must_fit_the_application() -> None:
    variant = (Variant("only", 0.9, (LatencyProfile.linear(1, 1),)),)
    two = Deployment((Application("a0", MS, variant, classes=2),), workers(1))
    with pytest.raises(StrettoError, match="3 class shares for 2 classes"):
        Load(Poisson(), 1.0, mix={"a0": Mix((1, 1, 1))}).chunks(two, 1.0, 1)
