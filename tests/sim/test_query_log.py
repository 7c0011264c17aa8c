"""Query logs: written and read back exactly, replayed in order, and refused with the line that is wrong."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.sim import query_log, traces
from stretto.sim.arrivals import ARRIVAL, Client, Clients, Mix
from stretto.sim.processes import Gamma, Uniform
from stretto.sim.query_log import QueryLog, write_query_log

MS = 1_000_000
VARIANT = (Variant("only", 0.9, (LatencyProfile.linear(1, 1),)),)
DEPLOYMENT = Deployment((Application("ecg", 50 * MS, VARIANT), Application("faces", 200 * MS, VARIANT)), workers(1))
SOURCE = Clients(
    (Client("faces", Gamma(0.3), 400.0, priority=-3), Client("ecg", Uniform(), 100.0, deadline_ns=12_345_678)),
    {"faces": Mix(class_shares=(1, 1), deadlines_ns=(MS, 3 * MS))},
)


def read(folder: Path, text: str, from_first: bool = False) -> QueryLog:
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    return QueryLog.read(path, from_first)


def replayed(log: QueryLog, seconds: float = 1000.0) -> list[tuple[int, ...]]:
    return [tuple(row) for chunk in log.chunks(DEPLOYMENT, seconds) for row in chunk.tolist()]


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_written_log_comes_back_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    whole = np.concatenate(list(SOURCE.chunks(DEPLOYMENT, 5.0, 1)))
    assert write_query_log(path, SOURCE.chunks(DEPLOYMENT, 5.0, 1, rows=100), DEPLOYMENT) == len(whole) > 2000
    log = QueryLog.read(path)
    chunks = list(log.chunks(DEPLOYMENT, 5.0, seed=99, rows=700))
    assert [len(chunk) for chunk in chunks[:-1]] == [700] * (len(chunks) - 1)
    again = np.concatenate(chunks)
    assert again.dtype == ARRIVAL
    assert again.tobytes() == whole.tobytes()
    half = np.concatenate(list(log.chunks(DEPLOYMENT, 2.5)))
    assert half.tobytes() == whole[whole["time_ns"] < 2_500_000_000].tobytes()
    assert log.expected_rates(DEPLOYMENT, 5.0) == pytest.approx(np.bincount(whole["application"]) / 5)


def test_columns_in_any_order_with_unsaid_cells(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "application,deadline_ms,time_ms,class,client,priority\n"
        "ecg,,20.5,,,\nfaces,7.25,0.000001,3,9,-2\n\necg,-1,20.5,0,-1,5\n",
    )
    assert replayed(log) == [
        (1, 1 + 7_250_000, 1, 9, 3, -2),
        (20_500_000, 70_500_000, 0, -1, -1, 0),
        (20_500_000, 70_500_000, 0, -1, 0, 5),
    ]
    assert log.expected_rates(DEPLOYMENT, 0.1) == pytest.approx((20.0, 10.0))
    assert replayed(log, 0.02) == replayed(log)[:1]


def test_only_time_and_application(tmp_path: Path) -> None:
    assert replayed(read(tmp_path, "time_ns,application\n5,ecg\n")) == [(5, 5 + 50 * MS, 0, -1, -1, 0)]


def test_wall_clock_times_count_from_the_first(tmp_path: Path) -> None:
    text = "time_ns,application\n1700000000000000500,ecg\n1700000000000000000,faces\n"
    assert [row[0] for row in replayed(read(tmp_path, text, from_first=True))] == [0, 500]
    with pytest.raises(StrettoError, match=r"log.csv, line 2: a time of 1.7e\+12 ms is not between"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "log.csv: the file has nothing in it"),
        ("time_ms,application\n", "log.csv: the file has no rows"),
        ("application\necg\n", "log.csv: a query log needs one of the columns time_ms and time_ns"),
        ("time_ms,time_ns,application\n1,1,ecg\n", "log.csv: a query log needs one of"),
        ("time_ms\n1\n", "log.csv: a query log needs the column application"),
        ("time_ms,application,colour\n1,ecg,2\n", "log.csv: unknown column 'colour'"),
        ("time_ms,application,client,client\n1,ecg,2,2\n", "log.csv: column client is there twice"),
        ("time_ms,application,deadline_ms,deadline_ns\n1,ecg,2,2\n", "log.csv: a query log has at most one"),
        ("time_ms,application\n1,ecg\n-2,ecg\n", "log.csv, line 3: time_ms is '-2'"),
        ("time_ms,application\n1,ecg\n-0.5,ecg\n", "log.csv, line 3: a time of -0.5 ms is not between 0"),
        ("time_ms,application\nnan,ecg\n", "log.csv, line 2: time_ms is 'nan'"),
        ("time_ms,application\n,ecg\n", "log.csv, line 2: time_ms is ''"),
        ("time_ns,application\n1.5,ecg\n", "log.csv, line 2: time_ns is '1.5'; it must be a whole number"),
        ("time_ns,application\n" + "9" * 30 + ",ecg\n", "log.csv, line 2: time_ns is"),
        ("time_ms,application\n1,\n", "log.csv, line 2: the application is missing"),
        ("time_ms,application\n1\n", "log.csv, line 2: 1 cells where the header has 2"),
        ("time_ms,application,deadline_ms\n1,ecg,-3\n", "log.csv, line 2: deadline_ms is '-3'"),
        ("time_ms,application,client\n1,ecg,-3\n", "log.csv, line 2: client is -3; it must be from -1"),
        ("time_ms,application,class\n1,ecg,4294967296\n", "log.csv, line 2: class is 4294967296"),
    ],
)
def test_a_wrong_log_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StrettoError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(says)


def test_an_unknown_application_is_named_with_its_first_line(tmp_path: Path) -> None:
    log = read(tmp_path, "time_ms,application\n9,ecg\n8,cats\n7,dogs\n1,cats\n")
    with pytest.raises(StrettoError, match=r"log.csv, line 3: the deployment has no application 'cats'"):
        log.chunks(DEPLOYMENT, 1.0)
    with pytest.raises(StrettoError, match="line 3"):
        log.expected_rates(DEPLOYMENT, 1.0)


def test_npz_with_names(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    np.savez(path, time_ms=[3.5, 1.0], application=["ecg", "faces"], deadline_ms=[-1, 2.5])
    assert replayed(QueryLog.read(path)) == [
        (1 * MS, 3_500_000, 1, -1, -1, 0),
        (3_500_000, 53_500_000, 0, -1, -1, 0),
    ]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"time_ms": [1.0, np.nan], "application": ["ecg", "ecg"]}, "log.npz, line 2: time_ms is nan"),
        ({"time_ms": [1.0, -5.0], "application": ["ecg", "ecg"]}, "log.npz, line 2: a time of -5 ms"),
        ({"time_ns": [1.5], "application": ["ecg"]}, "log.npz, line 1: time_ns is 1.5"),
        ({"time_ns": [1, 2], "application": ["ecg"]}, "log.npz: time_ns must be 1 numbers"),
        ({"time_ns": ["x"], "application": ["ecg"]}, "log.npz: time_ns must be 1 numbers"),
        ({"time_ns": [1], "application": [0]}, "log.npz: application must be names"),
        ({"time_ns": [1], "application": [1], "applications": ["ecg"]}, "log.npz, line 1: application is 1"),
        ({"time_ns": [], "application": np.empty(0, "U3")}, "log.npz: a query log holds between 1"),
        ({"time_ns": 3, "application": np.array("ecg")}, "log.npz: a query log holds between 1"),
        ({"application": ["ecg"]}, "log.npz: a query log needs one of"),
        ({"time_ns": [1], "application": np.array([{}], dtype=object)}, "log.npz: the file is not an .npz file"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, arrays: dict[str, object], says: str) -> None:
    path = tmp_path / "log.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(StrettoError) as error:
        QueryLog.read(path)
    assert str(error.value).startswith(says)


def test_files_that_are_no_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StrettoError, match=r"log.txt: a query log is a .csv or an .npz file"):
        QueryLog.read(tmp_path / "log.txt")
    with pytest.raises(StrettoError, match=r"none.npz: the file cannot be read"):
        QueryLog.read(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(StrettoError, match=r"text.npz: the file is not an .npz file"):
        QueryLog.read(tmp_path / "text.npz")
    good = io.BytesIO()
    np.savez(good, time_ns=np.arange(1000), application=np.repeat("ecg", 1000))
    (tmp_path / "cut.npz").write_bytes(good.getvalue()[:-400])
    with pytest.raises(StrettoError, match=r"cut.npz"):
        QueryLog.read(tmp_path / "cut.npz")
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("time_ns.npy", b"not an array")
    with pytest.raises(StrettoError, match=r"odd.npz"):
        QueryLog.read(tmp_path / "odd.npz")
    (tmp_path / "big.npz").write_bytes(good.getvalue())
    monkeypatch.setattr(query_log, "MAX_ARRAY_BYTES", 100)
    with pytest.raises(StrettoError, match=r"big.npz: an array is larger"):
        QueryLog.read(tmp_path / "big.npz")


def test_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_log, "MAX_ROWS", 10)
    monkeypatch.setattr(traces, "MAX_ROWS", 2)
    with pytest.raises(StrettoError, match=r"out.csv: a query log holds at most 10"):
        write_query_log(tmp_path / "out.csv", SOURCE.chunks(DEPLOYMENT, 5.0, 1), DEPLOYMENT)
    with pytest.raises(StrettoError, match="line 4: a file may have at most 2 rows"):
        read(tmp_path, "time_ms,application\n1,ecg\n2,ecg\n3,ecg\n")
    with pytest.raises(StrettoError, match="cannot be written"):
        write_query_log(tmp_path / "no" / "out.csv", [], DEPLOYMENT)
    with pytest.raises(StrettoError, match=r"is a .csv or an .npz"):
        write_query_log(tmp_path / "out.txt", [], DEPLOYMENT)
