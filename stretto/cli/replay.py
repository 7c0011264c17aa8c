"""`stretto replay`: the event log of a live server through the simulator; every decision and plan is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.options import Json
from stretto.cli.output import print_json, progress_bar


def replay(
    file: Annotated[Path, typer.Argument(metavar="EVENTS.jsonl", help="Written by stretto serve --record.")],
    as_json: Json = False,
) -> None:
    """Replay what a server recorded, and compare every decision and every plan.

    Each event goes into a fresh dispatcher at the time it had, and what the planner saw into a fresh planner. Exit code
    1 where anything differs.

    \b
    Examples:
      stretto serve zoo:fashion --record events.jsonl
      stretto replay events.jsonl
    """
    from stretto.sim.replay import replay as run

    with progress_bar("replaying") as progress:
        result = run(file, progress)
    if as_json:
        print_json(
            {
                "events": result.events,
                "decisions": result.decisions,
                "plans": result.plans,
                "dispatchers": result.dispatchers,
                "submitted": result.submitted,
                "seconds": result.span_ns / 1e9,
                "outcomes": result.outcomes,
                "differences": result.difference_count,
                "first_differences": result.differences,
            }
        )
    else:
        ended = ", ".join(f"{count} {name}" for name, count in result.outcomes.items() if count)
        typer.echo(f"{result.events} events over {result.span_ns / 1e9:.1f} s, {result.submitted} queries: {ended}")
        typer.echo(
            f"{result.decisions} decisions and {result.plans} plans, {result.difference_count} of them different"
        )
        for text in result.differences:
            typer.echo(f"  {text}")
    if not result.is_identical:
        raise typer.Exit(1)
