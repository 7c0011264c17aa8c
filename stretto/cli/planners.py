"""`stretto planners`: the planners that a scenario may name, with their options."""

from __future__ import annotations

from dataclasses import asdict

from stretto.cli.options import Json
from stretto.cli.output import print_json, print_tables


def planners(as_json: Json = False) -> None:
    """List the planners and their options.

    \b
    Examples:
      stretto planners
      stretto planners --json
    """
    from stretto.planners.registry import ENTRIES

    if as_json:
        print_json({e.name: {"what": e.what, "options": [asdict(option) for option in e.options]} for e in ENTRIES})
        return
    from rich.table import Table

    table = Table(header_style="bold")
    for column in ("planner", "what it does, and its options"):
        table.add_column(column, no_wrap=column == "planner")
    for entry in ENTRIES:
        lines = [entry.what, *(f"  {o.name} = {o.default}: {o.what}" for o in entry.options)]
        table.add_row(entry.name, "\n".join(lines))
    print_tables(table)
