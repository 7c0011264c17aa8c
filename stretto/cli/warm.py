"""`stretto warm`: everything that serving compiles, ahead of time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.output import progress_bar
from stretto.core.errors import StrettoError

Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Write there, and set STRETTO_CACHE_DIR to it when serving; else your cache."),
]
AnyProcessor = Annotated[
    bool, typer.Option("--any-processor", help="For every processor of this architecture, as an image needs it.")
]


def warm(out: Out = None, any_processor: AnyProcessor = False) -> None:
    """Compile all that serving needs, so that the first start of a server is as fast as any other.

    \b
    Examples:
      stretto warm
      stretto warm --any-processor --out /var/cache/stretto
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StrettoError(f"--out {out} cannot be made: {error.strerror}") from None
        if not os.access(out, os.W_OK):
            raise StrettoError(f"--out {out} may not be written; choose another folder")
        os.environ["STRETTO_CACHE_DIR"] = str(out)
    if any_processor:
        os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}  # read when Numba is loaded, so first
    from stretto.api.bounds import rehearse_bounds
    from stretto.core.compile_cache import user_folder
    from stretto.live.rehearsal import rehearse

    with progress_bar("compiling") as progress:
        rehearse(progress, has_fronts=True)
        rehearse_bounds()
    typer.echo(f"compiled code is in {user_folder().parent}")
