"""Small applications in Python for the benchmarks of fuzz and of chaos: written as a user writes them, a folder with a
callable beside its variant.toml. What a variant does, at load and at run, is a few lines of code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto.repository.machine import this_machine
from stretto.repository.model_code import code_sha256
from stretto.repository.profiles import MeasuredBatch, StoredProfile, profile_path, write_profile

SHAPE = (4,)
CLASSES = 3
CODE = "model:Model"
BATCHES = (1, 2, 4, 8, 16)

MODULE = """\
import ctypes
import os
import time

import numpy as np


class Model:
    def __init__(self):
        self.kept = []
        self.runs = 0
        {load}

    def __call__(self, batch):
        self.runs += 1
        {run}
        return batch[:, :3].astype(np.float32)
"""


@dataclass(frozen=True)
class Behaviour:
    """Lines of Python that run when the model is loaded, and in front of each answer."""

    load: str = "pass"
    run: str = "pass"


HANG = "time.sleep(86_400)"
CRASH = "ctypes.string_at(0)"  # reads address 0: a segmentation fault
EXIT = "os._exit(3)"
RAISE = "raise RuntimeError('a model that does not want to')"
LEAK = "self.kept.append(np.ones(4_000_000, np.uint8))"  # 4 MB that are really there, each time
FILL = "self.kept.append(np.ones(1_500_000_000, np.uint8))"

GOOD = Behaviour()
NOBODY: Mapping[str, Behaviour] = {}
BAD = {
    "crashes_at_load": Behaviour(load=CRASH),
    "exits_at_load": Behaviour(load=EXIT),
    "hangs_at_load": Behaviour(load=HANG),
    "raises_at_load": Behaviour(load=RAISE),
    "fills_memory_at_load": Behaviour(load=FILL),
    "crashes_at_run": Behaviour(run=f"{CRASH} if self.runs > 1 else None"),
    "exits_at_run": Behaviour(run=f"{EXIT} if self.runs > 1 else None"),
    "hangs_at_run": Behaviour(run=f"{HANG} if self.runs > 1 else None"),
    "raises_at_run": Behaviour(run=RAISE),
    "leaks_at_run": Behaviour(run=LEAK),
}


def write_application(
    repository: Path,
    name: str,
    behaviour: Behaviour = GOOD,
    *,
    kind: str | None = None,
    slo_ms: float = 200.0,
    latency_ms: float = 0.5,
    beside: Mapping[str, Behaviour] = NOBODY,
) -> Path:
    """An application of one variant, `only`, that gives back the first numbers of a row, and of those `beside` it, said
    to be more accurate. Its folder appears whole, at once.

    Beside applications of the zoo, `kind` is that of their profiles: a deployment has one kind.
    """
    part = repository / f".{name}.part"
    part.mkdir(parents=True)
    (part / "app.toml").write_text(
        f'slo_ms = {slo_ms:g}\n\n[input]\nshape = [{SHAPE[0]}]\n\n[output]\nname = "scores"\nshape = [{CLASSES}]\n'
        'kind = "scores"\n\n[limits]\nmax_batch = 16\n'
    )
    for number, (variant, does) in enumerate({"only": behaviour, **beside}.items()):
        _write_variant(part / "variants" / variant, does, 0.9 + number / 100, kind, latency_ms)
    part.rename(repository / name)
    return repository / name


def _write_variant(folder: Path, behaviour: Behaviour, accuracy: float, kind: str | None, latency_ms: float) -> None:
    folder.mkdir(parents=True)
    (folder / "variant.toml").write_text(
        f'backend = "callable"\ncode = "{CODE}"\naccuracy = {accuracy:g}\naccuracy_source = "measured"\n'
    )
    (folder / "model.py").write_text(MODULE.format(load=behaviour.load, run=behaviour.run))
    machine = this_machine()
    kind = kind or machine.kind
    points = {
        batch: MeasuredBatch(mean, 0.98 * mean, 1.1 * mean, 1.2 * mean, 200, 0.01)
        for batch, mean in ((batch, latency_ms * (1 + 0.1 * batch)) for batch in BATCHES)
    }
    stored = StoredProfile(
        kind=kind,
        machine=machine,
        backend="callable",
        threads=1,
        model_sha256=code_sha256(folder, CODE),
        batches=points,
        alpha_ms=0.1 * latency_ms,
        beta_ms=latency_ms,
        memory_bytes=1_000_000,
        dynamic_memory_bytes=1000,
        load_ms=5.0,
    )
    write_profile(profile_path(folder, kind), stored)
