"""What commands print and write: JSON or tables on standard output, a progress bar on a terminal's standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stretto.core.errors import StrettoError

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 100  # of tables that no terminal shows

Progress = Callable[[float], None]


def print_json(value: Any) -> None:
    """Sorted keys and a fixed layout: equal results print equal text. What is not a number prints as null."""
    print(json.dumps(_plain(value), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # a numpy scalar or array
        return _plain(value.tolist())
    return value


def print_tables(*tables: Any) -> None:
    """Rich tables, in colour where a terminal shows them."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables:
        console.print(table)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A bar that takes fractions from 0 to 1; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """The progress of part `number` of `count` equal parts."""
    return None if progress is None else lambda fraction: progress((number + fraction) / count)


NO_PLOT = "no plot: matplotlib is not installed; for one run: pip install 'stretto[plot]'"


def check_plot(file: Path | None) -> None:
    """Refuses before a long run a plot that could not be made after it."""
    check_writable(file, "--plot", PLOT_SUFFIXES)
    if file is not None and find_spec("matplotlib") is None:
        raise StrettoError("plots need matplotlib; install it with: pip install 'stretto[plot]'")


def plot_of_demo(asked: Path | None, usual: str) -> Path | None:
    """Where the plot goes. A plot that nobody asked for is left out where there is nothing to draw it with."""
    return Path(usual) if asked is None and find_spec("matplotlib") is not None else asked


def check_writable(file: Path | None, what: str, suffixes: tuple[str, ...]) -> None:
    """Refuses before a long run what could not be written after it."""
    if file is None:
        return
    if file.suffix.lower() not in suffixes:
        raise StrettoError(f"{what} {file} must end in {' or '.join(suffixes)}")
    if not file.parent.is_dir():
        raise StrettoError(f"{what} {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise StrettoError(f"{what} {file} is a folder; name a file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise StrettoError(f"{what} {file} may not be written there; choose another folder")
