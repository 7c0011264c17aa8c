"""Recorded queries: a log of what came when, replayed as it was; and how to write one.

CSV columns, or arrays of an .npz file: `time_ms` or `time_ns`, `application` (its name), and optionally `deadline_ms`
or `deadline_ns` (relative to the arrival), `client`, `class`, `priority`. An empty cell, or -1, means that the log
does not say. Rows may come in any order. In an .npz file, `application` may also hold places in a list `applications`.
"""

from __future__ import annotations

import csv
import os
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.sim.arrivals import (
    ARRIVAL,
    CHUNK,
    MAX_DEADLINE_NS,
    application_numbers,
    check_run,
    check_span,
    slos_ns,
)
from stretto.sim.processes import MAX_SECONDS
from stretto.sim.traces import MAX_ROWS, Path, csv_lines, number_in

MAX_TIME_NS = int(MAX_SECONDS) * NS_PER_S
MAX_ARRAY_BYTES = 2**30  # of one array in an .npz file
UNSAID = -1
COLUMNS = ("time_ns", "time_ms", "application", "deadline_ns", "deadline_ms", "client", "class", "priority")

# A row as logged: `deadline_ns` is relative or UNSAID, `application` is a place in the log's own list of names.
_LOGGED = ARRIVAL
_FIELDS = {"client": "client", "class": "query_class", "priority": "priority"}
_BOUNDS = {
    "time_ns": (0, MAX_TIME_NS),
    "deadline_ns": (UNSAID, MAX_DEADLINE_NS),
    "client": (UNSAID, 2**31 - 1),
    "class": (UNSAID, 2**31 - 1),
    "priority": (-(2**31), 2**31 - 1),
}


@dataclass(frozen=True, eq=False)
class QueryLog:
    """Read it with `QueryLog.read`. `rows` are sorted by time; `lines` says where each stood in the file."""

    name: str
    applications: tuple[str, ...]
    rows: NDArray[np.void]
    lines: NDArray[np.int64]

    @staticmethod
    def read(path: Path, from_first: bool = False) -> QueryLog:
        """A .csv or .npz file. `from_first` counts time from the first query, for logs kept in wall-clock time."""
        name = os.path.basename(path)
        suffix = os.path.splitext(name)[1].lower()
        if suffix not in (".csv", ".npz"):
            raise StrettoError(f"{name}: a query log is a .csv or an .npz file")
        applications, columns, lines = (_read_npz if suffix == ".npz" else _read_csv)(path)
        times_ns = columns["time_ns"]
        if from_first:
            times_ns -= times_ns.min()
        rows = np.zeros(len(lines), dtype=_LOGGED)
        for field, default in (("deadline_ns", UNSAID), ("client", UNSAID), ("query_class", UNSAID)):
            rows[field] = default
        for column, values in columns.items():
            lowest, highest = _BOUNDS.get(column, (0, len(applications)))
            wrong = np.flatnonzero((values < lowest) | (values > highest))
            if len(wrong):
                raise StrettoError(f"{name}, line {lines[wrong[0]]}: {_out_of_range(column, int(values[wrong[0]]))}")
            rows[_FIELDS.get(column, column)] = values
        order = np.argsort(times_ns, kind="stable")
        return QueryLog(name, applications, rows[order], lines[order])

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        check_span(seconds)
        within = self.rows[: np.searchsorted(self.rows["time_ns"], round(seconds * NS_PER_S))]
        counts = np.bincount(self._numbers(deployment)[within["application"]], minlength=len(deployment.applications))
        return tuple(float(count / seconds) for count in counts)

    def chunks(
        self, deployment: Deployment, seconds: float, seed: int = 0, *, rows: int = CHUNK
    ) -> Iterator[NDArray[np.void]]:
        """The seed changes nothing: a log is what happened."""
        end_ns = check_run((), seconds, rows)
        return self._replay(self._numbers(deployment), slos_ns(deployment), end_ns, rows)

    def _replay(
        self, numbers: NDArray[np.int64], slo_ns: NDArray[np.int64], end_ns: int, size: int
    ) -> Iterator[NDArray[np.void]]:
        end = int(np.searchsorted(self.rows["time_ns"], end_ns))
        for start in range(0, end, size):
            chunk = self.rows[start : min(start + size, end)].copy()
            chunk["application"] = numbers[chunk["application"]]
            said = chunk["deadline_ns"] != UNSAID
            chunk["deadline_ns"] = np.where(said, chunk["deadline_ns"], slo_ns[chunk["application"]]) + chunk["time_ns"]
            yield chunk

    def _numbers(self, deployment: Deployment) -> NDArray[np.int64]:
        """The deployment's number for each application of the log."""
        known = application_numbers(deployment)
        used = np.bincount(self.rows["application"], minlength=len(self.applications)) > 0
        unknown = [place for place, label in enumerate(self.applications) if used[place] and label not in known]
        if unknown:
            line, place = min((int(self.lines[self.rows["application"] == place].min()), place) for place in unknown)
            raise StrettoError(
                f"{self.name}, line {line}: the deployment has no application {self.applications[place][:40]!r}"
            )
        return np.array([known.get(label, UNSAID) for label in self.applications], dtype=np.int64)


def write_query_log(path: Path, chunks: Iterable[NDArray[np.void]], deployment: Deployment) -> int:
    """Writes arrivals as a .csv or .npz log that `QueryLog.read` gives back exactly. Returns the number of queries."""
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    names = [application.name for application in deployment.applications]
    if suffix not in (".csv", ".npz"):
        raise StrettoError(f"{name}: a query log is a .csv or an .npz file")
    try:
        return (_write_npz if suffix == ".npz" else _write_csv)(path, _bounded(name, chunks), names)
    except OSError as error:
        raise StrettoError(f"{name}: the file cannot be written ({error.strerror})") from None


def _bounded(name: str, chunks: Iterable[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    rows = 0
    for chunk in chunks:
        rows += len(chunk)
        if rows > MAX_ROWS:
            raise StrettoError(f"{name}: a query log holds at most {MAX_ROWS} queries; write a shorter run")
        yield chunk


def _write_csv(path: Path, chunks: Iterator[NDArray[np.void]], names: list[str]) -> int:
    written = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time_ns", "application", "deadline_ns", "client", "class", "priority"))
        for chunk in chunks:
            labels = [names[number] for number in chunk["application"].tolist()]
            relative_ns = (chunk["deadline_ns"] - chunk["time_ns"]).tolist()
            rest = [chunk[field].tolist() for field in ("client", "query_class", "priority")]
            writer.writerows(zip(chunk["time_ns"].tolist(), labels, relative_ns, *rest, strict=True))
            written += len(chunk)
    return written


def _write_npz(path: Path, chunks: Iterator[NDArray[np.void]], names: list[str]) -> int:
    rows = np.concatenate([np.empty(0, dtype=ARRIVAL), *chunks])
    arrays: dict[str, Any] = {column: rows[field] for column, field in _FIELDS.items()}
    with open(path, "wb") as file:
        np.savez_compressed(
            file,
            time_ns=rows["time_ns"],
            application=rows["application"],
            applications=np.array(names),
            deadline_ns=rows["deadline_ns"] - rows["time_ns"],
            **arrays,
        )
    return len(rows)


def _check_columns(name: str, column_names: Iterable[str]) -> None:
    columns = list(column_names)
    for column in columns:
        if column not in COLUMNS:
            raise StrettoError(f"{name}: unknown column {column[:40]!r}; a query log has {', '.join(COLUMNS)}")
        if columns.count(column) > 1:
            raise StrettoError(f"{name}: column {column} is there twice")
    if ("time_ns" in columns) == ("time_ms" in columns):
        raise StrettoError(f"{name}: a query log needs one of the columns time_ms and time_ns")
    if "deadline_ns" in columns and "deadline_ms" in columns:
        raise StrettoError(f"{name}: a query log has at most one of the columns deadline_ms and deadline_ns")
    if "application" not in columns:
        raise StrettoError(f"{name}: a query log needs the column application")


def _out_of_range(column: str, value: int) -> str:
    lowest, highest = _BOUNDS[column]
    if column.endswith("_ns"):
        return f"a {column[:-3]} of {value / NS_PER_MS:.12g} ms is not between 0 and {highest // NS_PER_MS} ms"
    return f"{column} is {value}; it must be from {lowest} to {highest}"


_Read = tuple[tuple[str, ...], dict[str, NDArray[np.int64]], NDArray[np.int64]]


def _read_csv(path: Path) -> _Read:
    name = os.path.basename(path)
    content = csv_lines(path)
    _, header = next(content)
    _check_columns(name, header)
    names: dict[str, int] = {}
    lines = array("q")
    # One reader and one array per column; a reader gets the name of the file, the line and the cell.
    parts = [(array("q"), _cell_reader(column, names), place) for place, column in enumerate(header)]
    for line, cells in content:
        lines.append(line)
        for values, read, place in parts:
            values.append(read(name, line, cells[place]))
    columns = {column.replace("_ms", "_ns"): np.array(part[0]) for column, part in zip(header, parts, strict=True)}
    return tuple(names), columns, np.array(lines)


def _cell_reader(column: str, names: dict[str, int]) -> Callable[[str, int, str], int]:
    """How a cell of a column becomes a whole number; bounds of the column itself are checked later, all at once."""

    def application(name: str, line: int, cell: str) -> int:
        if not cell:
            raise StrettoError(f"{name}, line {line}: the application is missing")
        return names.setdefault(cell, len(names))

    def milliseconds(name: str, line: int, cell: str) -> int:
        if not cell and column == "deadline_ms":
            return UNSAID
        value = number_in(name, line, column, cell, UNSAID, 2.0**62 / NS_PER_MS)
        return UNSAID if value == UNSAID else round(value * NS_PER_MS)

    def whole(name: str, line: int, cell: str) -> int:
        if not cell and column != "time_ns":
            return 0 if column == "priority" else UNSAID
        try:
            value = int(cell)
        except ValueError:
            value = -(2**63)
        if not -(2**62) <= value <= 2**62:
            raise StrettoError(f"{name}, line {line}: {column} is {cell[:40]!r}; it must be a whole number") from None
        return value

    return application if column == "application" else milliseconds if column.endswith("_ms") else whole


def _read_npz(path: Path) -> _Read:
    """Line numbers are the places in the arrays, from 1."""
    name = os.path.basename(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.file_size > MAX_ARRAY_BYTES for entry in archive.infolist()):
                raise StrettoError(f"{name}: an array is larger than {MAX_ARRAY_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, NDArray[Any]] = {column: archive[column] for column in archive.files}
    except OSError as error:
        raise StrettoError(f"{name}: the file cannot be read ({error.strerror or 'damaged'})") from None
    except StrettoError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, SyntaxError, NotImplementedError):
        raise StrettoError(f"{name}: the file is not an .npz file of plain arrays") from None
    listed = arrays.pop("applications", None)
    _check_columns(name, arrays)
    rows = len(arrays["application"]) if arrays["application"].ndim == 1 else 0
    if not 1 <= rows <= MAX_ROWS:
        raise StrettoError(f"{name}: a query log holds between 1 and {MAX_ROWS} queries")
    applications, places = _npz_applications(name, arrays.pop("application"), listed)
    columns = {"application": places}
    for column, values in arrays.items():
        if values.shape != (rows,) or values.dtype.kind not in "iuf":
            raise StrettoError(f"{name}: {column} must be {rows} numbers, one for each application")
        columns[column.replace("_ms", "_ns")] = _whole_numbers(name, column, values)
    return applications, columns, np.arange(1, rows + 1)


def _npz_applications(
    name: str, values: NDArray[Any], listed: NDArray[Any] | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if listed is None and values.dtype.kind == "U":
        labels, places = np.unique(values, return_inverse=True)
        return tuple(labels.tolist()), places.astype(np.int64)
    if listed is None or listed.dtype.kind != "U" or listed.ndim != 1 or values.dtype.kind not in "iu":
        raise StrettoError(f"{name}: application must be names, or places in a list of names called applications")
    wrong = np.flatnonzero((values < 0) | (values >= len(listed)))
    if len(wrong):
        raise StrettoError(
            f"{name}, line {wrong[0] + 1}: application is {values[wrong[0]]}, outside the list of {len(listed)} names"
        )
    return tuple(listed.tolist()), values.astype(np.int64)


def _whole_numbers(name: str, column: str, values: NDArray[Any]) -> NDArray[np.int64]:
    numbers = values
    if column.endswith("_ms"):
        numbers = np.rint(np.where(values == UNSAID, UNSAID, values.astype(np.float64) * NS_PER_MS))
    fine = (np.abs(numbers.astype(np.float64)) <= 2.0**62) & (numbers == np.rint(numbers))
    if not fine.all():
        place = int(np.argmin(fine))
        raise StrettoError(f"{name}, line {place + 1}: {column} is {values[place]}; it must be a whole number in range")
    return numbers.astype(np.int64)
