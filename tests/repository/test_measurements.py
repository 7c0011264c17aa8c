"""A CSV of measured latencies makes variants; what is wrong in it is told with its line."""

from pathlib import Path

import pytest

from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.repository.measurements import read_measurements

GOOD = """model,accuracy,batch,p95_ms,mean_ms,samples
fast,0.6,1,8,7,100
fast,0.6,2,11,10,100
fast,0.6,4,17,15,100
slow,0.9,1,25,24,100
slow,0.9,2,34,33,100
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "latencies.csv"
    file.write_text(text)
    return file


def test_models_are_variants_with_their_latencies(tmp_path: Path) -> None:
    fast, slow = read_measurements(written(tmp_path, GOOD), "cpu")
    assert (fast.name, fast.accuracy, slow.name, slow.accuracy) == ("fast", 0.6, "slow", 0.9)
    (profile,) = fast.profiles
    assert profile.kind == "cpu" and profile.max_batch == 4
    assert [profile.latency_ns(b) for b in (1, 2, 3, 4)] == [8_000_000, 11_000_000, 14_000_000, 17_000_000]
    assert profile.latency_ns(4, Quantile.MEAN) == 15_000_000
    assert slow.profiles[0].latency_ns(4) == 52_000_000  # filled by a line to the largest batch of the file


def test_columns_may_stand_in_any_order_with_spaces_and_a_mark(tmp_path: Path) -> None:
    text = "﻿ batch , model,p99_ms, accuracy\n1,a,5,0.5\n"
    (only,) = read_measurements(written(tmp_path, text))
    assert only.profiles[0].latency_ns(1) == 5_000_000


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("model,", "name,", "line 1: no table of measured latencies; the columns are model, accuracy, batch"),
        ("p95_ms,mean_ms", "p95,mean", "line 1: no table of measured latencies"),
        ("fast,0.6,1,8", "fast,0.6,0,8", "line 2: batch is '0'; it must be a whole number from 1"),
        ("fast,0.6,1,8", "fast,0.6,1.5,8", "line 2: batch is '1.5'"),
        ("fast,0.6,1,8", "fast,0.6,1,-8", "line 2: p95_ms is '-8'"),
        ("fast,0.6,1,8", "fast,0.6,1,nan", "line 2: p95_ms is 'nan'"),
        ("fast,0.6,1,8", "fast,60,1,8", "line 2: accuracy is '60'; it must be a number from 0 to 1"),
        ("fast,0.6,2", "fast,0.7,2", "line 3: accuracy of fast is 0.7 here and 0.6 above"),
        ("fast,0.6,2", "fast,0.6,1", "line 3: batch 1 of fast stands there twice"),
        ("fast,0.6,1,8,7,100", "fast,0.6,1,,,100", "line 2: there is no latency"),
        ("fast,0.6,1,8,7,100", "fast,0.6,1,8,7,100,1", "line 2: there are more cells than columns"),
        ("fast,0.6,1", "a b,0.6,1", "variant 'a b' must start with a letter"),
        (GOOD[GOOD.index("\n") + 1 :], "", "there are no rows below the header"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(StrettoError) as error:
        read_measurements(written(tmp_path, GOOD.replace(old, new, 1)))
    assert says in str(error.value)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match="cannot be read"):
        read_measurements(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00model")
    with pytest.raises(StrettoError, match="not a CSV table in UTF-8"):
        read_measurements(tmp_path / "binary.csv")
