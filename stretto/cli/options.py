"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.core.errors import StrettoError

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What to simulate; see docs/scenario.md.")]
OptionalScenarioFile = Annotated[
    Path | None, typer.Argument(metavar="[SCENARIO.toml]", help="What to measure; or describe it by options.")
]
Model = Annotated[
    str | None, typer.Option(metavar="TABLE:MODEL", help="A published model, as symphony_1080ti:ResNet50.")
]
SloMs = Annotated[float | None, typer.Option(metavar="MS", help="The SLO of the model; else the published one.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of workers (with --model; 8 unless given).")]
Arrivals = Annotated[str | None, typer.Option(metavar="KIND", help="With --model: poisson, uniform or gamma:SHAPE.")]
Planner = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="In place of the scenario's; see stretto planners. Or MODULE:FUNCTION."),
]
Compare = Annotated[str | None, typer.Option(metavar="A,B,C", help="Several planners on the same load, side by side.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed in place of the scenario's.")]
Seconds = Annotated[float | None, typer.Option(metavar="S", help="Simulated seconds in place of the scenario's.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a plot (.png, .svg or .pdf).")]


def memory_bytes(megabytes: float | None) -> int:
    """What a worker may hold, by --worker-memory-mb."""
    from stretto.core.worker import UNLIMITED_MEMORY

    return UNLIMITED_MEMORY if megabytes is None else round(megabytes * 1e6)


def need_zeromq() -> None:
    """Where an option asks for several machines."""
    try:
        import zmq  # noqa: F401
    except ImportError:
        raise StrettoError("processes on several machines speak over ZeroMQ: pip install 'stretto[cluster]'") from None
