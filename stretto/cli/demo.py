"""`stretto demo`: the batching systems on one bursty load near capacity, in about a minute with compilation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Json
from stretto.cli.output import PLOT_SUFFIXES, check_writable, print_json, print_tables, progress_bar
from stretto.cli.run import run_scenario

if TYPE_CHECKING:
    from stretto.sim.results import Summary
