"""gpu_serve: what its figures mean, how a part replaces its own results, and all of its machinery on the processor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_load import Clients, Drive, Measured, merged
from benchmarks.gpu_models import Network, Photos, best_throughput, write_photos
from benchmarks.gpu_parts import PARTS, binary_body, held_goodput
from benchmarks.gpu_serve import run_parts, with_other_parts
from benchmarks.gpu_stage import Setup, Stage, environment
from benchmarks.harness import Benchmark
from stretto.client.load import LoadOutcome, LoadSpec
from stretto.client.load.result import LoadResult
from stretto.repository.profiles import read_profile
from stretto.repository.read import zoo_folder


def measured(outcomes: list[int], rows: int = 8, seconds: float = 2.0) -> Measured:
    count = len(outcomes)
    times = np.arange(count, dtype=np.int64) * 10**9
    right = np.where(np.array(outcomes) == LoadOutcome.ON_TIME, rows - 1, 0)
    names = np.array(["only"] * count)
    return Measured(rows, seconds, times, times, times, np.array(outcomes, np.uint8), right, names, 0.1)


def test_goodput_and_shares_count_all_requests() -> None:
    seen = measured([0, 0, 0, 1, 4, LoadOutcome.BROKEN])
    assert seen.on_time_share == 0.5 and seen.goodput == 3 * 8 / 2
    assert seen.correct_on_time == pytest.approx(3 * 7 / (6 * 8))
    assert seen.unseen == 1
    assert seen.before(3.0) == 1.0 and seen.before(4.0) == 0.75
    row = seen.row()
    assert row["ends"] == "on_time 3, late 1, overloaded 1, broken 1" and row["variants"] == "only 1"


def test_a_load_that_was_not_carried_has_no_goodput() -> None:
    carried, overloaded = measured([0] * 99 + [1]), measured([0] * 150 + [1] * 50)
    assert held_goodput([carried, overloaded]) == carried.goodput < overloaded.goodput
    assert held_goodput([overloaded]) == 0.0


def part_result(outcomes: list[int], variants: tuple[str, ...], cpu_ns: int) -> LoadResult:
    count = len(outcomes)
    zeros = np.zeros(count, np.int64)
    spec = LoadSpec("app", np.zeros((1, 2)), rate=1.0, seconds=3.0)
    outcome = np.array(outcomes, np.uint8)
    variant = np.where(outcome <= LoadOutcome.LATE, 0, -1).astype(np.int16)
    return LoadResult(
        *(spec, 50, variants, True, zeros, zeros, zeros, outcome, variant, np.ones(count, np.int16)),
        *(zeros.astype(np.int32), 10**9, cpu_ns, 1, 0),
    )


def test_the_clients_results_are_one() -> None:
    seen = merged([part_result([0, 4], ("small", "large"), 10**8), part_result([0], ("large",), 5 * 10**8)])
    assert seen.requests == 3 and seen.on_time == 2 and seen.seconds == 3.0
    assert seen.variant.tolist() == ["small", "", "large"]
    assert seen.client_cpu_share == 0.5


def test_the_best_throughput_is_that_of_the_best_batch() -> None:
    folder = zoo_folder() / "fashion" / "variants" / "mlp" / "profiles"
    stored = read_profile(next(folder.glob("*.json")))
    point = stored.batches[1]
    faked = replace(
        stored, batches={1: replace(point, mean=1.0), 8: replace(point, mean=2.0), 9: replace(point, mean=3)}
    )
    assert best_throughput(faked) == (4000.0, 8)


def test_a_part_that_is_run_again_replaces_its_own_results_alone() -> None:
    def bench(part: str, ours: float) -> Benchmark:
        made = Benchmark("gpu_serve")
        made.row(part="profile", application="photos", variant="a", load_ms=ours)
        made.row(part=part, rate=ours)
        made.claim(f"{part}: something", paper="—", target="≥ 1", ours=ours, met=ours >= 1)
        return made

    first = bench("kill", 1.0)
    first.row(part="profile", application="other", variant="b", load_ms=5.0)
    first.row(part="profile", application="photos", variant="gone", load_ms=7.0)
    earlier: dict[str, Any] = {"claims": first.claims, "rows": first.rows}
    second = with_other_parts(bench("rates", 2.0), earlier, ["rates"])
    assert [(claim["what"], claim["ours"]) for claim in second.claims] == [
        ("rates: something", 2.0),
        ("kill: something", 1.0),
    ]
    assert [row.get("load_ms", row.get("rate")) for row in second.rows] == [2.0, 5.0, 2.0, 1.0]
    third = with_other_parts(bench("kill", 0.0), {"claims": second.claims, "rows": second.rows}, ["kill"])
    assert [claim["met"] for claim in third.claims] == [True, False]


def test_a_body_is_what_the_protocol_says() -> None:
    body, headers = binary_body(np.full((1, 2, 2), 7, np.uint8))
    length = int(headers[0].rpartition(" ")[2])
    head = json.loads(body[:length])
    assert head["inputs"][0]["datatype"] == "UINT8" and head["inputs"][0]["shape"] == [1, 2, 2]
    assert body[length:] == b"\x07" * 4


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("STRETTO_GPU_WITHOUT", raising=False)
    with environment("STRETTO_GPU_WITHOUT", "graphs"):
        assert os.environ["STRETTO_GPU_WITHOUT"] == "graphs"
    assert "STRETTO_GPU_WITHOUT" not in os.environ
    with environment("STRETTO_GPU_WITHOUT", ""):
        assert "STRETTO_GPU_WITHOUT" not in os.environ


def tiny(width: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * 36, 4))


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Tiny networks on the processor at tiny rates."""
    networks = (Network("small", lambda: tiny(2), 0.7), Network("large", lambda: tiny(16), 0.8))
    photos = Photos("photos", networks, "float32", (1, 8, 8), 4, max_batch=8, slo_ms=200)
    repository = tmp_path / "ladder"
    ladder = replace(photos, name="clothes")
    write_photos(ladder, repository, tmp_path / "programs")
    folder = repository / "clothes"
    for number, network in enumerate(networks):
        metrics = {"accuracy": 0.5 + number / 10}
        (folder / "variants" / network.name / "metrics.json").write_text(json.dumps(metrics))
        (folder / "variants" / network.name / "variant.toml").write_text('backend = "torch"\nfile = "model.pt2"\n')
    with np.load(repository / "clothes.npz") as arrays:
        np.savez(folder / "sample.npz", inputs=arrays["inputs"], labels=np.arange(16) % 4)
    return Setup(
        tmp_path / "work",
        folder,
        serve=("--device", "cpu", "--workers", "1", "--executor", "process"),
        profile=("--device", "cpu", "--budget-s", "0.3", "--no-judge", "--batches", "1,8"),
        photos=photos,
        floats=replace(photos, name="photos_float32"),
        onnx=replace(photos, name="photos_onnx", dtype="uint8", backend="onnx"),
        alone="small",
        killed="small",
        rates=(20,),
        float_rates=(20,),
        onnx_rates=(20,),
        shares=(0.002,),
        compare_rates=(20,),
        kill_rate=20,
        kills=1,
        seconds=1.0,
        ladder_seconds=1.0,
        curve_shares=(0.05, 0.1),
        curve_seconds=0.5,
        warm_rate=20,
        warm_seconds=0.5,
    )


@pytest.mark.extras
def test_the_parts_run_on_the_processor(setup: Setup) -> None:
    """Those with the most machinery; the others start a server and load it as these do."""
    pytest.importorskip("torch")
    bench = Benchmark("gpu_serve")
    chosen = ["ladder", "curve", "kill"]
    assert run_parts(bench, setup, chosen, 2, lambda _: None) == chosen
    claims = {claim["what"]: claim for claim in bench.claims}
    assert {what.partition(":")[0] for what in claims} == set(chosen)
    for what in ("queries without an outcome, by the server's counts", "workers started again"):
        assert claims[f"kill: {what}"]["met"], claims
    assert next(claim for what, claim in claims.items() if what.startswith("kill: answers"))["met"], claims
    curve = [row["served_by"] for row in bench.rows if row["part"] == "curve" and "served_by" in row]
    without = [f"Stretto without {feature}" for feature in ("ladder", "overlap", "graphs")]
    assert sorted(curve) == sorted(2 * ["Stretto", "small", "large", *without])
    rows = [row for row in bench.rows if row["part"] == "ladder" and "served_by" in row]
    assert [row["served_by"] for row in rows] == ["Stretto", "small", "large"]
    assert {row["variants"] for row in rows[1:]} == {"small 1", "large 1"}
    assert all(0 < row["correct_on_time"] < 1 for row in rows)
    assert len([row for row in bench.rows if row["part"] == "profile" and "variant" in row]) == 4


@pytest.mark.extras
def test_networks_are_served_from_onnx_files_too(setup: Setup) -> None:
    pytest.importorskip("torch")
    bench = Benchmark("gpu_serve")
    assert run_parts(bench, setup, ["onnx"], 2, lambda _: None) == ["onnx"]
    assert [claim["what"].partition(",")[0] for claim in bench.claims] == ["onnx: 20 requests/s of one image as bytes"]
    assert [row["of_limit"] for row in bench.rows if "of_limit" in row]
    assert bench.claims[0]["met"], bench.claims


@pytest.mark.extras
def test_a_part_that_cannot_be_run_keeps_its_earlier_result(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Benchmark("gpu_serve")
    assert run_parts(bench, replace(setup, ladder=None), ["ladder", "curve"], 1, lambda _: None) == []
    assert "ladder: left out, as no --ladder" in capsys.readouterr().out


@pytest.mark.extras
def test_a_part_that_fails_costs_the_others_nothing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(stage: Stage) -> None:
        stage.row(rate=1)
        raise RuntimeError("the GPU fell off")

    monkeypatch.setitem(PARTS, "rates", fails)
    monkeypatch.setitem(PARTS, "load", lambda stage: stage.claim("it ran", "1", 1.0, True))
    bench = Benchmark("gpu_serve")
    told: list[list[str]] = []
    assert run_parts(bench, setup, ["rates", "load"], 1, told.append) == ["load"] == told[0]
    assert not bench.rows and [claim["what"] for claim in bench.claims] == ["load: it ran"]
    assert "its earlier result stays" in capsys.readouterr().out


def test_requests_of_all_clients_are_the_drawn_ones(tmp_path: Path) -> None:
    """Against a server that is not there: every request ends, and none is asked twice."""
    np.savez(tmp_path / "inputs.npz", inputs=np.zeros((2, 3), np.float32))
    with Clients(1) as clients, pytest.raises(Exception, match=r"127\.0\.0\.1|reach|refused"):
        clients.run(Drive("http://127.0.0.1:9", "app", tmp_path / "inputs.npz", 0.5, 20.0))
