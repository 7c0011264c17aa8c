"""Variants from one CSV of measured latencies, for planning with models that are in no repository.

Columns, in any order: model, accuracy (a fraction), batch, and one or more of mean_ms, p50_ms, p95_ms, p99_ms; a row
for each model and batch size. Other columns are left alone. Batch sizes that were not measured are filled up to
the largest one in the file, as `LatencyProfile.measured` does it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from stretto.core.application import Variant
from stretto.core.errors import StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT, MAX_LATENCY_MS, LatencyProfile, Quantile

MAX_ROWS = 100_000
MAX_MODELS = 1_000
NEEDED = ("model", "accuracy", "batch")
LATENCIES = tuple(quantile.name.lower() for quantile in Quantile)


def read_measurements(file: Path, kind: str = "default") -> tuple[Variant, ...]:
    """Every model of the file as a variant, in the order in which they first stand there."""
    points: dict[str, dict[int, dict[str, float]]] = {}
    accuracy: dict[str, float] = {}
    for line, row in _rows(file):
        where = f"{file.name}, line {line}"
        name = row["model"].strip()
        batch = int(_number(where, "batch", row["batch"], 1, MAX_BATCH_LIMIT, whole=True))
        stated = _number(where, "accuracy", row["accuracy"], 0, 1)
        if accuracy.setdefault(name, stated) != stated:
            raise StrettoError(f"{where}: accuracy of {name[:40]} is {stated:g} here and {accuracy[name]:g} above")
        if batch in points.setdefault(name, {}):
            raise StrettoError(f"{where}: batch {batch} of {name[:40]} stands there twice; keep one row")
        if len(points) > MAX_MODELS:
            raise StrettoError(f"{where}: a file may have at most {MAX_MODELS} models")
        points[name][batch] = {
            what: _number(where, f"{what}_ms", row[f"{what}_ms"], 1e-6, MAX_LATENCY_MS)
            for what in LATENCIES
            if row.get(f"{what}_ms", "").strip()
        }
        if not points[name][batch]:
            raise StrettoError(f"{where}: there is no latency; fill in {', '.join(f'{q}_ms' for q in LATENCIES)}")
    largest = max(max(by_batch) for by_batch in points.values())
    return tuple(
        Variant(name, accuracy[name], (LatencyProfile.measured(by_batch, largest, kind),))
        for name, by_batch in points.items()
    )


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True, restval="")
            columns = [column.strip() for column in reader.fieldnames or ()]
            missing = [column for column in NEEDED if column not in columns]
            if missing or not any(f"{what}_ms" in columns for what in LATENCIES):
                raise StrettoError(
                    f"{file.name}, line 1: no table of measured latencies; the columns are model, accuracy, batch and"
                    f" some of {', '.join(f'{what}_ms' for what in LATENCIES)}"
                )
            reader.fieldnames = columns
            count = 0
            for count, row in enumerate(reader, 1):
                if count > MAX_ROWS:
                    raise StrettoError(f"{file.name}: a file may have at most {MAX_ROWS} rows")
                if None in row:
                    raise StrettoError(f"{file.name}, line {reader.line_num}: there are more cells than columns")
                yield reader.line_num, row
            if not count:
                raise StrettoError(f"{file.name}: there are no rows below the header")
    except OSError as error:
        raise StrettoError(f"{file.name}: the file cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error):
        raise StrettoError(f"{file.name}: the file is not a CSV table in UTF-8") from None


def _number(where: str, what: str, text: str, low: float, high: float, whole: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise StrettoError(f"{where}: {what} is {text[:40]!r}; it must be {kind} from {low:g} to {high:g}")
    return value
