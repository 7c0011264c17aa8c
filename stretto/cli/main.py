"""`stretto`: the commands by name. Imports no numpy, so that help comes at once; each command loads what it needs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stretto import __version__
from stretto.cli.bound import bound
from stretto.cli.capacity import capacity
from stretto.cli.check import check
from stretto.cli.compare import compare
from stretto.cli.demo import demo
from stretto.cli.evidence import evidence
from stretto.cli.front_end import front_end
from stretto.cli.goodput import goodput
from stretto.cli.infer import infer
from stretto.cli.load import load
from stretto.cli.network import network
from stretto.cli.partition import partition
from stretto.cli.plan import plan
from stretto.cli.planners import planners
from stretto.cli.profile import profile
from stretto.cli.repartition import repartition
from stretto.cli.replay import replay
from stretto.cli.scheduler import scheduler
from stretto.cli.serve import serve
from stretto.cli.setting import setting
from stretto.cli.simulate import simulate
from stretto.cli.train import TrainHelp, train
from stretto.cli.tune import tune
from stretto.cli.warm import warm
from stretto.cli.worker import worker
from stretto.core.errors import StrettoError


class Commands(TyperGroup):
    """What a person got wrong is a sentence and exit code 2, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StrettoError as error:
            try:
                typer.echo(f"error: {error}", err=True)
            except OSError:  # nobody can be told; what cannot be written is not tried again at the exit
                sys.stderr = None  # type: ignore[assignment]
            raise typer.Exit(2) from None


app = typer.Typer(
    name="stretto",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich help doubles the time to answer
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stretto {__version__}")
        raise typer.Exit


@app.callback()
def stretto(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Machine-learning inference under deadlines: serve models, measure them, and simulate the same decisions.

    \b
    stretto demo                                      what Stretto gains over any single model, live
    stretto serve zoo:fashion                         a server on this machine
    stretto infer fashion sample                      ask it
    stretto simulate examples/resnet50_8_workers.toml one scenario, one table
    """


for command in (
    demo,
    serve,
    scheduler,
    worker,
    front_end,
    infer,
    load,
    network,
    check,
    profile,
    evidence,
    simulate,
    train,
    goodput,
    bound,
    plan,
    partition,
    repartition,
    capacity,
    compare,
    planners,
    replay,
    setting,
    tune,
    warm,
):
    app.command(cls=TrainHelp if command is train else None)(command)


if __name__ == "__main__":
    app()
