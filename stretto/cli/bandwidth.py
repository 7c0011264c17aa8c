"""Bandwidth traces as a person names them: a file, one that comes with the package, or a rate that never changes."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.core.bandwidth import Bandwidth

BUILT_IN = ("steady", "steps", "fading", "outages")
MAX_FILE_BYTES = 64 << 20
RATE = re.compile(r"([0-9]*\.?[0-9]+)([kmg])bit", re.IGNORECASE)
UNITS = {"k": 125.0, "m": 125e3, "g": 125e6}

TraceForm = Annotated[
    str,
    typer.Option(metavar="FORM", help="Of a file: mbit, a value in Mbit/s a line, or mahimahi, a line a packet."),
]
StepS = Annotated[float, typer.Option(metavar="S", help="How long each value of a file in Mbit/s holds.")]
Scale = Annotated[float, typer.Option(metavar="FACTOR", help="The same trace, so many times as fast.")]
OffsetS = Annotated[float, typer.Option(metavar="S", min=0, help="Where in the trace to begin; it repeats for ever.")]
DelayMs = Annotated[float, typer.Option(metavar="MS", min=0, max=60_000, help="Delay of the link, each way.")]
QueueBytes = Annotated[int, typer.Option(metavar="N", help="Bytes that wait at the link before senders are held up.")]


def read_bandwidth(trace: str, form: str = "mbit", step_s: float = 1.0, scale: float = 1.0) -> Bandwidth:
    """`trace` is a file, one of BUILT_IN, or a rate such as 5mbit or 300kbit."""
    from stretto.core.bandwidth import TraceForm, bandwidth_from, constant

    if form not in list(TraceForm):
        raise StrettoError(f"the form of a trace is {' or '.join(TraceForm)}, not {form[:40]!r}")
    rate = RATE.fullmatch(trace)
    if rate:
        bandwidth = constant(float(rate[1]) * UNITS[rate[2].lower()])
    elif trace in BUILT_IN:
        data = resources.files("stretto") / "data" / f"network_{trace}.txt"
        bandwidth = bandwidth_from(data.read_text(encoding="utf-8"))
    else:
        try:
            bandwidth = bandwidth_from(_text_of(Path(trace)), TraceForm(form), step_s=step_s)
        except StrettoError as error:
            raise StrettoError(f"{trace}: {error}") from None
    return bandwidth.scaled(scale)


def _text_of(path: Path) -> str:
    try:
        if not path.is_file():
            raise StrettoError(
                f"there is no such file; a trace is a file, a rate such as 5mbit, or one of {', '.join(BUILT_IN)}"
            )
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StrettoError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise StrettoError("cannot be read as text") from None
