"""What Ray runs: an actor for each role, which keeps that role's process.

Ray makes an actor anew, with the arguments that it had, when its process or its node is lost. So it is given all that
it needs to start its role again, and remembers nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stretto
from stretto.live.ray.keeper import Keeper


@dataclass(frozen=True)
class Role:
    """`arguments` are those of the command line, `config` the content of its configuration file. `node`: there and
    nowhere else; `folder`: its current one.
    """

    name: str
    arguments: tuple[str, ...]
    config: str = ""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    node: str | None = None
    folder: str | None = None

    @property
    def needs(self) -> str:
        """In words."""
        cpus = f"{self.num_cpus:g} CPU" if self.num_cpus else ""
        return " and ".join(part for part in (cpus, f"{self.num_gpus:g} GPU" if self.num_gpus else "") if part)


class RoleActor:
    """Made a Ray actor by `placing`; as a class it is an ordinary one, which tests use as it is."""

    def __init__(self, role: Role, key: bytes) -> None:
        """Files that the process needs are memory without a name: the key is on no disk and in no list of processes."""
        files = {"--key-file": key} | ({"--config": role.config.encode()} if role.config else {})
        argv = [sys.executable, "-m", "stretto", *role.arguments]
        self._descriptors = []
        self._config: int | None = None
        for option, content in files.items():
            descriptor = os.memfd_create("stretto", 0)
            os.write(descriptor, content)
            self._descriptors.append(descriptor)
            self._config = descriptor if option == "--config" else self._config
            argv += [option, f"/proc/self/fd/{descriptor}"]
        self._keeper = Keeper(argv, _environment(), self._descriptors, role.folder)

    def reload(self, config: str) -> None:
        """Another configuration, in force from now on, as far as SIGHUP takes it up, and wholly at the next start."""
        descriptor, content = self._config, config.encode()
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
            self._keeper.signal(signal.SIGHUP)

    def state(self) -> dict[str, Any]:
        """Who answers is in its place."""
        return {"pid": self._keeper.pid, "starts": self._keeper.starts, "actor": os.getpid()}

    def stop(self, patience_s: float) -> bool:
        """True: it ended by itself, with nothing open."""
        is_clean = self._keeper.stop(patience_s)
        self._config = None
        while self._descriptors:
            os.close(self._descriptors.pop())
        return is_clean


def _environment() -> dict[str, str]:
    """The role runs the same package as its actor, wherever that came from."""
    home = str(Path(stretto.__file__).resolve().parent.parent)
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
