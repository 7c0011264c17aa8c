"""Resampled arrivals against the stretch that they come from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.planners.symphony import Symphony
from stretto.sim.simulator import simulate
from stretto.twin.recent import Recent
from stretto.twin.resample import Resampled, block_length_ns, overlapping
from stretto.twin.stretch import WINDOWS_NS, ArrivalStretch, dispersion
from tests.twin.made import SLO_NS, bursty, deployment, poisson, requests_at, stretch, whole_setting

ONE = deployment("a")


def drawn(source: Resampled, seconds: float, seed: int = 1, on: tuple[str, ...] = ("a",)) -> NDArray[np.void]:
    chunks = list(source.chunks(deployment(*on), seconds, seed))
    queries = np.concatenate(chunks)
    assert (np.diff(queries["time_ns"]) >= 0).all()
    assert queries["time_ns"][0] >= 0 and queries["time_ns"][-1] < seconds * NS_PER_S
    return queries


def spread(queries: NDArray[np.void], seconds: float, window_ns: int) -> float:
    rows = np.ones(len(queries), dtype=np.int32)
    return dispersion(queries["time_ns"], rows, round(seconds * NS_PER_S), window_ns)


@pytest.mark.parametrize("kind", ["poisson", "bursty"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_rate_and_dispersion_are_kept_and_the_load_factor_scales(kind: str, factor: float) -> None:
    recorded = stretch(kind)
    seconds = 900.0 / factor
    queries = drawn(Resampled({"a": recorded}, factor), seconds)
    assert len(queries) / seconds == pytest.approx(recorded.rate * factor, rel=0.04)
    for window_ns, wanted in zip(WINDOWS_NS, recorded.dispersion, strict=True):
        assert spread(queries, seconds, round(window_ns / factor)) == pytest.approx(wanted, rel=0.12)
    if kind == "bursty":
        assert recorded.dispersion[1] > 2 * stretch("poisson").dispersion[1]


def test_rows_come_together_and_deadlines_classes_and_rows_keep_their_shares() -> None:
    recorded = stretch("bursty")
    queries = drawn(Resampled({"a": recorded}), 300.0)
    _, sizes = np.unique(queries["time_ns"], return_counts=True)
    assert np.mean(sizes == 8) == pytest.approx(0.1, abs=0.01) and np.mean(sizes == 1) == pytest.approx(0.8, abs=0.02)
    assert (queries["deadline_ns"] - queries["time_ns"] == 50 * NS_PER_MS).all()
    shares = [np.mean(queries["query_class"] == number) for number in (0, 1, 2, -1)]
    assert shares == pytest.approx([0.5, 0.2, 0.0, 0.3], abs=0.01)


def test_the_same_seed_gives_the_same_arrivals_however_long_and_in_whatever_chunks() -> None:
    source = Resampled({"a": stretch("bursty"), "b": ArrivalStretch(20.0, class_shares=(1.0,))})
    on = deployment("a", "b")
    short = np.concatenate(list(source.chunks(on, 40.0, 7)))
    long = np.concatenate(list(source.chunks(on, 400.0, 7, rows=501)))
    assert short.tobytes() == long[: len(short)].tobytes()
    assert short.tobytes() != np.concatenate(list(source.chunks(on, 40.0, 8))).tobytes()
    fixed = Resampled(source.stretches, seed=7)
    assert np.concatenate(list(fixed.chunks(on, 40.0, 99))).tobytes() == short.tobytes()


def test_peaks_of_applications_recorded_together_stay_together() -> None:
    """Resampled one by one, they would meet by chance only, and a plan would look better than it is."""
    times_ns = bursty(300, 60, 4)
    one = ArrivalStretch.of(requests_at(times_ns), 60 * NS_PER_S)
    queries = drawn(Resampled({"a": one, "b": one}), 120.0, on=("a", "b"))
    counts = [
        np.bincount(queries["time_ns"][queries["application"] == number] // (50 * NS_PER_MS), minlength=2400)
        for number in (0, 1)
    ]
    assert counts[0].tolist() == counts[1].tolist()


def test_stretches_of_busy_applications_are_cut_to_the_time_that_all_of_them_have() -> None:
    """Regression: a ring of requests that is full begins at the oldest of its application, so that no two of them had
    the same span, and peaks that came together were resampled apart.
    """
    recent = Recent(0, requests=2_000, longest_ns=120 * NS_PER_S)
    times_ns = bursty(100, 60, 4)
    for now_ns in times_ns.tolist():
        for name, rows in (("a", 1), ("b", 3), ("b", 1)):
            recent.arrived(now_ns, name, rows, NS_PER_MS)
    for second in range(60):
        recent.arrived(second * NS_PER_S, "c", 1, NS_PER_MS)
        recent.classified("c", second % 2)
    on = deployment("a", "b", "c", "d")
    came = recent.setting(60 * NS_PER_S, on, present={}).arrivals
    assert came["b"].span_ns < came["a"].span_ns < came["c"].span_ns == 60 * NS_PER_S
    cut = overlapping(came)
    assert list(cut) == list(came) and cut["b"] is came["b"]
    assert cut["a"].span_ns == cut["b"].span_ns
    assert cut["c"] is came["c"] and cut["d"] is came["d"], "few requests tell more of a rate over a long time"
    start_ns = 60 * NS_PER_S - cut["b"].span_ns
    later_ns = times_ns[times_ns >= start_ns]
    assert (cut["a"].requests["offset_ns"] == later_ns - start_ns).all()
    afresh = ArrivalStretch.of(requests_at(later_ns - start_ns), cut["b"].span_ns)
    assert (cut["a"].rate, cut["a"].dispersion) == (afresh.rate, afresh.dispersion)
    queries = drawn(Resampled(cut), 100.0, on=("a", "b", "c", "d"))
    counts = [
        np.bincount(queries["time_ns"][queries["application"] == number] // (50 * NS_PER_MS), minlength=2000)
        for number in (0, 1)
    ]
    assert np.corrcoef(counts)[0, 1] > 0.95


def test_a_stretch_that_would_lose_most_of_itself_is_not_cut() -> None:
    """Those that go back about as far are cut to each other."""
    spans_s = {"fast": 2.0, "slow": 100.0, "slower": 120.0}
    came = {
        name: ArrivalStretch.of(requests_at(poisson(200, span_s, 1)), round(span_s * NS_PER_S), (0.5,))
        for name, span_s in spans_s.items()
    }
    cut = overlapping(came)
    assert {name: each.span_ns // NS_PER_S for name, each in cut.items()} == {"fast": 2, "slow": 100, "slower": 100}
    assert cut["fast"] is came["fast"] and cut["slow"] is came["slow"] and cut["slower"].class_shares == (0.5,)


def test_where_nothing_was_recorded_the_rate_and_burstiness_are_drawn() -> None:
    queries = drawn(Resampled({"a": ArrivalStretch(400.0)}, 2.0), 100.0)
    assert len(queries) == pytest.approx(80_000, rel=0.02)
    assert spread(queries, 100.0, 100 * NS_PER_MS) == pytest.approx(1.0, abs=0.15)
    assert (queries["deadline_ns"] - queries["time_ns"] == SLO_NS).all()
    queries = drawn(Resampled({"a": ArrivalStretch(400.0, (4.0, 4.0, 4.0))}), 200.0)
    assert spread(queries, 200.0, NS_PER_S) == pytest.approx(4.0, rel=0.3)
    few = ArrivalStretch.of(requests_at(poisson(2, 10, 1), 4), 10 * NS_PER_S)
    queries = drawn(Resampled({"a": few}), 1000.0)
    assert len(queries) / 1000 == pytest.approx(few.rate, rel=0.1)
    assert (np.unique(queries["time_ns"], return_counts=True)[1] == 4).all()


@pytest.mark.parametrize("seed", [9, 31])
def test_what_chance_made_of_a_short_stretch_is_not_repeated(seed: int) -> None:
    """Of 400 requests in five seconds the counts by 100 ms spread by 0.6 or 1.5 where nothing but chance is behind it;
    plans for two workers were chosen for bursts, or an evenness, that never came again.
    """
    recorded = ArrivalStretch.of(requests_at(poisson(80, 5, seed), 2), 5 * NS_PER_S)
    assert abs(recorded.dispersion[1] / 2 - 1) > 0.3
    queries = drawn(Resampled({"a": recorded}, 1.5), 1000.0)
    assert len(queries) / 1000 == pytest.approx(1.5 * recorded.rate, rel=0.03)
    assert spread(queries, 1000.0, 100 * NS_PER_MS) / 2 == pytest.approx(1.0, abs=0.06)
    assert (np.unique(queries["time_ns"], return_counts=True)[1] == 2).all()
    assert (queries["deadline_ns"] - queries["time_ns"] == 50 * NS_PER_MS).all()


def test_blocks_hold_the_bursts_and_there_are_enough_of_them() -> None:
    span_ns = 600 * NS_PER_S
    one = np.ones(1, np.int32)
    plain = poisson(20, 600, 1)
    assert block_length_ns(plain, np.repeat(one, len(plain)), span_ns) == 4 * NS_PER_S
    slow = np.concatenate([start * NS_PER_S + poisson(100, 10, start) for start in range(0, 600, 30)])
    assert 20 * NS_PER_S <= block_length_ns(slow, np.repeat(one, len(slow)), span_ns) <= 60 * NS_PER_S


def test_a_load_that_moves_stays_at_its_levels_for_as_long_as_it_did() -> None:
    """A second each at two levels, five seconds of it: ten blocks would change the level each half second or so."""
    span_ns = 5 * NS_PER_S
    times = np.concatenate([start * NS_PER_S + poisson(2000 if start % 2 else 40, 1, start) for start in range(5)])
    stretch = ArrivalStretch.of(requests_at(times, 1), span_ns)
    queries = drawn(Resampled({"a": stretch}), 200.0)
    is_high = np.bincount(queries["time_ns"] // (NS_PER_S // 10), minlength=2000) > 100
    changes = int((is_high[1:] != is_high[:-1]).sum())
    assert 120 <= changes <= 220  # 160 at the stretch's own pace, and one for every other joint
    steady = poisson(1000, 5, 1)
    assert block_length_ns(steady, np.ones(len(steady), np.int32), span_ns) == span_ns // 10


def test_a_setting_can_be_simulated() -> None:
    setting = whole_setting()
    on = deployment("a", "b", "c")
    result = simulate(
        on, Symphony(), setting.source(0.5, seed=3), seconds=20.0, service=setting.service(), delays=setting.delays
    )
    assert result.summary.submitted == pytest.approx(20 * 0.5 * setting.arrivals["a"].rate, rel=0.3)


def test_nothing_arrives_where_nothing_was_measured_and_unknown_applications_are_refused() -> None:
    assert list(Resampled({"a": ArrivalStretch(0.0)}).chunks(ONE, 10.0, 1)) == []
    with pytest.raises(StrettoError, match="application b, which is not deployed"):
        Resampled({"b": ArrivalStretch(1.0)}).chunks(ONE, 10.0, 1)
    with pytest.raises(StrettoError, match="load factor"):
        Resampled({}, 0.0)
