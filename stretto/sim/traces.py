"""Rates recorded over time: a CSV of seconds and queries per second, replayed as Poisson arrivals at that rate.

The trace starts at its first second, and its last rate lasts as long as the one before it (a single one: a second).
Then it starts over; interpolated rates lead back to the first one.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from stretto.core.errors import StrettoError
from stretto.sim.processes import MAX_RATE, RateCycle, check_rate

Interpolation = Literal["linear", "hold"]
Path = str | os.PathLike[str]

MAX_ROWS = 10_000_000
MAX_TRACE_SECOND = 1e9
HEADERS = (["second", "queries_per_second"], ["second", "rate"])


@dataclass(frozen=True, eq=False)
class RateTrace:
    """`rates[i]` queries/s from `seconds[i]` on, in straight lines ("linear") or steps ("hold"), times `scale`."""

    seconds: NDArray[np.float64]
    rates: NDArray[np.float64]
    interpolation: Interpolation = "linear"
    scale: float = 1.0
    cycle: RateCycle = field(init=False, repr=False)
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        seconds, rates = _numbers("seconds", self.seconds), _numbers("rates", self.rates)
        if not 1 <= len(seconds) <= MAX_ROWS or len(seconds) != len(rates):
            raise StrettoError(f"a rate trace needs one rate per second given, and between 1 and {MAX_ROWS} of them")
        if not ((seconds >= 0) & (seconds <= MAX_TRACE_SECOND)).all() or not (np.diff(seconds) > 0).all():
            raise StrettoError(f"the seconds of a rate trace must rise, from 0 to at most {MAX_TRACE_SECOND:.0e}")
        if not ((rates >= 0) & (rates <= MAX_RATE)).all() or not rates.any():
            raise StrettoError(f"the rates of a trace must be between 0 and {MAX_RATE:.0e} queries/s, and not all zero")
        if self.interpolation not in ("linear", "hold"):
            raise StrettoError(
                f"the interpolation of a rate trace is {self.interpolation!r:.40}; use 'linear' or 'hold'"
            )
        if not (isinstance(self.scale, int | float | np.number) and 0 < self.scale < math.inf):
            raise StrettoError(f"the scale of a rate trace is {self.scale!r:.40}; it must be above 0")
        lasting = np.append(np.diff(seconds), seconds[-1] - seconds[-2] if len(seconds) > 1 else 1.0)
        begin = rates * self.scale
        check_rate("the highest rate of a trace, scaled,", float(begin.max()))
        end = np.roll(begin, -1) if self.interpolation == "linear" else begin
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "rates", rates)
        object.__setattr__(self, "cycle", RateCycle.of(lasting, begin, end))

    @staticmethod
    def read(path: Path, interpolation: Interpolation = "linear", scale: float = 1.0) -> RateTrace:
        """From a CSV whose first line is `second,queries_per_second` or `second,rate`."""
        name = os.path.basename(path)
        lines = csv_lines(path)
        _, header = next(lines)
        if header not in HEADERS:
            raise StrettoError(f"{name}, line 1: the header must be second,queries_per_second or second,rate")
        seconds, rates = array("d"), array("d")
        for line, cells in lines:
            second = number_in(name, line, "second", cells[0], 0, MAX_TRACE_SECOND)
            if seconds and second <= seconds[-1]:
                raise StrettoError(f"{name}, line {line}: second {cells[0]} does not come after the one before it")
            seconds.append(second)
            rates.append(number_in(name, line, "rate", cells[1], 0, MAX_RATE))
        if not any(rates):
            raise StrettoError(f"{name}: every rate is zero")
        return RateTrace(np.array(seconds), np.array(rates), interpolation, scale)

    def mean_rate(self, seconds: float | None = None) -> float:
        return self.cycle.mean_rate(seconds)

    def at_rate(self, rate: float) -> RateTrace:
        check_rate("the mean rate of a trace", rate)
        return replace(self, scale=self.scale * rate / self.mean_rate())

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        return self.cycle.blocks(seed, size)


def _numbers(what: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise StrettoError(f"the {what} of a rate trace must be numbers") from None
    if numbers.ndim != 1:
        raise StrettoError(f"the {what} of a rate trace must be one list of numbers")
    numbers.setflags(write=False)
    return numbers


def csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and trimmed cells of each line that is not blank; every line has as many cells as the header."""
    name = os.path.basename(path)
    line = 0
    if os.path.exists(path) and not os.path.isfile(path):
        raise StrettoError(f"{name}: the file cannot be read (not a plain file)")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            width = rows = 0
            for row in reader:
                line = reader.line_num
                if not row:
                    continue
                if width == 0:
                    width = len(row)
                elif len(row) != width:
                    raise StrettoError(f"{name}, line {line}: {len(row)} cells where the header has {width}")
                elif (rows := rows + 1) > MAX_ROWS:
                    raise StrettoError(f"{name}, line {line}: a file may have at most {MAX_ROWS} rows")
                yield line, [cell.strip() for cell in row]
            if rows == 0:
                raise StrettoError(f"{name}: the file has {'no rows below its header' if width else 'nothing in it'}")
    except OSError as error:
        raise StrettoError(f"{name}: the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise StrettoError(f"{name}: after line {line}, the file is not UTF-8 text") from None
    except csv.Error as error:
        raise StrettoError(f"{name}: after line {line}, the file is not a CSV table ({error})") from None


def number_in(name: str, line: int, what: str, text: str, lowest: float, highest: float) -> float:
    """A cell as a number between two bounds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not lowest <= value <= highest:
        raise StrettoError(
            f"{name}, line {line}: {what} is {text[:40]!r}; it must be a number from {lowest:.12g} to {highest:.12g}"
        )
    return value
