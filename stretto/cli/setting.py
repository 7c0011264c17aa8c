"""`stretto setting`: the conditions that a server measured, as tables, as pictures, or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Json, Plot
from stretto.cli.output import check_plot, check_writable, print_json, print_tables, progress_bar
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.twin.setting import Setting

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Events of stretto serve --record; or a SCENARIO.toml, or a setting written by --out."
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write the setting; no pickle, same bytes.")]


def setting(file: File, out: Out = None, plot: Plot = None, as_json: Json = False) -> None:
    """Show what a server measured: arrivals, burstiness, run times against the profile, delays, workers.

    \b
    Examples:
      stretto setting events.jsonl
      stretto setting events.jsonl --plot setting.png --out monday.npz
      stretto setting monday.npz --json
    """
    check_plot(plot)
    check_writable(out, "--out", (".npz",))
    for written in (out, plot):
        if written is not None and written.exists() and file.exists() and written.samefile(file):
            raise StrettoError(f"{written} is what is read; write to another file")
    measured = read_setting(file)
    if out is not None:
        from stretto.twin.setting_file import save_setting

        save_setting(out, measured)
    if plot is not None:
        from stretto.report.plots import save
        from stretto.report.setting import setting_figure

        save(setting_figure(measured, file.name), plot)
    if as_json:
        from stretto.report.setting import setting_as_dict

        print_json(setting_as_dict(measured))
        return
    from stretto.report.setting import setting_tables

    print_tables(*setting_tables(measured, file.name))
    for word, written in (("setting", out), ("plot", plot)):
        if written is not None:
            typer.echo(f"{word}: {written}")


def read_setting(file: Path) -> Setting:
    """By what the file is: a setting, a scenario, else an event log."""
    from stretto.twin.measure import setting_from_log, setting_from_scenario
    from stretto.twin.setting_file import is_setting_file, load_setting

    if is_setting_file(file) or file.suffix.lower() == ".npz":
        return load_setting(file)
    if file.suffix.lower() == ".toml":
        from stretto.cli.scenario.read import read_scenario

        scenario = read_scenario(file)
        return setting_from_scenario(
            scenario.deployment,
            scenario.source,
            scenario.service,
            scenario.delays,
            seconds=scenario.seconds,
            seed=scenario.seed,
            clients=scenario.clients,
        )
    with progress_bar("reading") as progress:
        return setting_from_log(file, progress)
