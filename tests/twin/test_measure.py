"""Settings from logs that a server recorded, and from scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stretto.cli.scenario.read import parse_scenario
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plain import to_plain
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_MS, NS_PER_S, Quantile
from stretto.live.recorder import Journal, recording
from stretto.sim.service import Deterministic, Empirical, Lognormal, Service
from stretto.twin import measure
from stretto.twin.log import LogListener
from stretto.twin.measure import recording_of, setting_from_log, setting_from_scenario
from stretto.twin.setting import Setting
from tests.live.real import asked, of_zoo, planned, sample, until, within
from tests.live.real import serving as really_serving
from tests.live.scripted import MS, Stage, plan_for, serving, variant

FAST, GOOD = variant("fast", 0.6), variant("good", 0.8, 2, 10)


def test_a_scripted_life_is_measured_exactly(tmp_path: Path) -> None:
    """Rows, slack, handoff, run times and who is there, under a clock that the test moves; moved queries count once."""
    path = tmp_path / "events.jsonl"
    served = serving(FAST, crew=2)
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal, handoff_ns=0)
        made.wait(500)
        for number in range(60):
            made.request(1 + number % 3, 400.0)
            made.wait(5)
            made.finish_all()
            made.wait(5)
        made.request(2, 400.0)
        made.request(1, 400.0)
        made.request(1, 400.0)  # two workers are busy: this one waits, and moves
        again = serving(FAST, crew=2, version="2")
        made.replace(again, plan_for(again))
        made.finish_all()
        made.lose(1)
        made.close()
    setting = setting_from_log(path)
    stretch = setting.arrivals["app"]
    assert len(stretch.requests) == 63
    assert stretch.rows_histogram() == {1: 22, 2: 21, 3: 20}
    assert stretch.slack_ns() == (400 * MS,) * 3
    assert np.diff(stretch.requests["offset_ns"])[:50].tolist() == [10 * MS] * 50
    assert stretch.requests["offset_ns"][0] == 0  # what came before the first request is not part of it
    assert stretch.rate == pytest.approx(124 / 0.6, rel=0.01)
    ((where, residuals),) = setting.residuals.items()
    assert where == ("app/fast", "default")
    assert residuals.runs >= 60
    assert sum(setting.present.values()) == 1
    assert len(setting.handoff_ns) >= 60 and setting.handoff_ns.min() >= 0


def test_a_recording_holds_every_query_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row each, in the order in which they came, however many a setting remembers; what moved counts once."""
    path = tmp_path / "events.jsonl"
    served = serving(FAST, crew=2)
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal, handoff_ns=0)
        made.wait(500)
        for number in range(30):
            made.request(1 + number % 3, 300.0 + number)
            made.wait(10)
            made.finish_all()
        for _ in range(3):
            made.request(1, 400.0)  # two workers are busy: the last one waits, and moves
        again = serving(FAST, crew=2, version="2")
        made.replace(again, plan_for(again))
        made.finish_all()
        made.close()
    heard = recording_of(path)
    assert to_plain(heard.deployment) == to_plain(again.deployment) and heard.setting.arrivals["app"].queries == 63
    (chunk,) = heard.queries.chunks(heard.deployment, 60.0)
    expected = [(number * 10 * MS, (300 + number) * MS) for number in range(30) for _ in range(1 + number % 3)]
    expected += [(300 * MS, 400 * MS)] * 3
    assert [(row["time_ns"], row["deadline_ns"] - row["time_ns"]) for row in chunk] == expected
    monkeypatch.setattr(measure, "MAX_ROWS", 62)
    with pytest.raises(StrettoError, match="more than 62 queries; record for a shorter time"):
        recording_of(path)
    with recording(tmp_path / "idle.jsonl") as journal:
        made = Stage(served, plan_for(served), journal=journal)
        made.close()
    with pytest.raises(StrettoError, match=r"idle\.jsonl tells of no query; record a server while it is asked"):
        recording_of(tmp_path / "idle.jsonl")


def test_requests_that_come_in_one_turn_of_the_loop_are_told_apart() -> None:
    """A server enters them together, each row with more to follow; none of them was counted."""
    listener, second_ns = LogListener(), NS_PER_S
    listener.hear(["made", 0, 0, 0.02, to_plain(serving(FAST).deployment), 0, None])
    for number, slack_ns in enumerate((400 * MS, 400 * MS, 300 * MS, 200 * MS)):
        query = [0, second_ns + slack_ns, -1, -1, -1, 0, -1, True, False]
        listener.hear(["submit", 0, second_ns, query, number])
    listener.hear(["advance", 0, second_ns])
    listener.hear(["submit", 0, 2 * second_ns, [0, 3 * second_ns, -1, -1, -1, 0, -1, True, False], 4])
    stretch = listener.setting().arrivals["app"]
    assert stretch.requests["rows"].tolist() == [2, 1, 1, 1]
    assert stretch.requests["slack_ns"].tolist() == [400 * MS, 300 * MS, 200 * MS, second_ns]


def test_a_real_server_s_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    served = of_zoo("mnist", 2)
    images = sample("mnist", 16)
    sizes = [1 + number % 4 for number in range(80)]

    async def work(journal: Journal) -> None:
        async with really_serving(served, journal=journal) as engine:
            for number, size in enumerate(sizes):
                sent = asked(engine, images[:size], "mnist", 30_000)
                if number % 3:
                    await sent
            await until(lambda: engine.waiting == 0)
            engine.succession.replace(served, planned(engine, served, plan_for(served)))
            await asked(engine, images[:1], "mnist", 30_000)

    with recording(path) as journal:
        within(60, lambda: work(journal))
    setting = setting_from_log(path)
    stretch = setting.arrivals["mnist"]
    assert len(stretch.requests) == 81 and stretch.rows_histogram() == {1: 21, 2: 20, 3: 20, 4: 20}
    assert stretch.slack_ns()[1] == 30_000 * MS
    assert stretch.rate == pytest.approx(stretch.queries / stretch.span_ns * NS_PER_S)
    assert sum(residuals.runs for residuals in setting.residuals.values()) >= 30
    assert {label.split("/")[0] for label, _ in setting.residuals} == {"mnist"}
    assert sum(setting.present.values()) == 2
    assert setting.delays.timer_ns >= 0 and len(setting.handoff_ns)
    arrivals = list(setting.source(seed=1).chunks(served.deployment, 5.0, 0))
    assert sum(map(len, arrivals)) == pytest.approx(5 * stretch.rate, rel=0.4)


def test_files_that_are_no_log_are_refused_and_a_log_cut_off_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    served = serving(FAST, GOOD)
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal)
        for _ in range(5):
            made.request(1, 400.0)
            made.finish_all()
        made.close()
    whole = path.read_text()
    path.write_text(whole[: whole.rindex('["submit"')] + '["submit", 0, 12')
    assert len(setting_from_log(path).arrivals["app"].requests) == 4
    head, _, made_line, *rest = whole.splitlines(keepends=True)
    for wrong, match in (
        ("hello\n", "is no JSON"),
        ('["hello"]\n', "no event log of this version"),
        (head, "tells of no deployment"),
        (head + made_line + '["submit", 0, 5, [99, 5, -1, -1, -1, 0, -1, false], 1]\n', ":3: "),
        (head + made_line + '["submit", 0, "5", [], 1]\n', "is no event"),
        (head + made_line + '["finished", 0, 5, 77, true, 5]\n', ":3: "),
        (head + made_line + '["decided", 0, [["run", 0, 9, [1], 0, 0]]]\n', ":3: "),
        (head + made_line + '["submit", 7, 5, [0, 5, -1, -1, -1, 0, -1, false], 1]\n', "is no event"),
        (head + "".join(rest), "is no event"),
        (head + json.dumps(["made", 0, 1, 0.0, {"type": "Delays"}, None, None]) + "\n", "is no event"),
    ):
        path.write_text(wrong)
        with pytest.raises(StrettoError, match=match):
            setting_from_log(path)
    with pytest.raises(StrettoError, match="cannot be read"):
        setting_from_log(tmp_path / "none.jsonl")


SCENARIO = """
[cluster]
workers = 3
[[application]]
name = "detect"
slo_ms = 60
[[application.variant]]
name = "small"
accuracy = 0.8
[application.variant.measured]
1 = { mean = 4.0, p50 = 3.5, p95 = 6.0, p99 = 9.0 }
4 = { mean = 7.0, p50 = 6.5, p95 = 9.0, p99 = 11.0 }
[load]
kind = "poisson"
rate = 300
[network]
control_ms = 0.5
"""


def measured(service: Service) -> tuple[Deployment, Setting]:
    scenario = parse_scenario(SCENARIO)
    deployment = scenario.deployment
    return deployment, setting_from_scenario(deployment, scenario.source, service, scenario.delays, seconds=30.0)


def test_a_scenario_is_a_setting() -> None:
    deployment, setting = measured(Lognormal(0.3))
    stretch = setting.arrivals["detect"]
    assert stretch.rate == pytest.approx(300, rel=0.05) and stretch.dispersion[0] == pytest.approx(1.0, abs=0.1)
    assert stretch.slack_ns() == (60 * NS_PER_MS,) * 3 and stretch.mean_rows() == pytest.approx(1.0)
    assert setting.present == {"default": 3} and setting.delays == Delays(control_ns=500_000)
    ratios = setting.residuals["detect/small", "default"].by_bucket[0]  # to the p95, which decisions rest on
    times_ns = ratios * deployment.profile(0).table_ns[Quantile.P95, 1]
    mean_ns = deployment.profile(0).table_ns[Quantile.MEAN, 1]
    assert times_ns.mean() == pytest.approx(mean_ns) and times_ns.std() == pytest.approx(0.3 * mean_ns, rel=0.05)


def test_stated_service_laws_become_residuals() -> None:
    deployment, setting = measured(Deterministic())
    table = deployment.profile(0).table_ns
    sample = setting.residuals["detect/small", "default"].by_bucket[0]
    assert np.unique(sample).tolist() == [1.0]
    _, setting = measured(Empirical((0.5, 2.0)))
    sample = setting.residuals["detect/small", "default"].by_bucket[0]
    mean_over_p95 = table[Quantile.MEAN, 1] / table[Quantile.P95, 1]
    assert np.unique(sample) == pytest.approx([0.5 * mean_over_p95, 2.0 * mean_over_p95])
    _, setting = measured(Empirical())
    sample = setting.residuals["detect/small", "default"].by_bucket[0]
    assert np.quantile(sample, [0.5, 0.95]) * 6.0 == pytest.approx([3.5, 6.0], rel=0.02)
    again = setting_from_scenario(deployment, setting.source(), setting.service(), setting.delays, seconds=10.0)
    assert again.arrivals["detect"].rate == pytest.approx(300, rel=0.1)
