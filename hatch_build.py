"""Puts compiled code into the wheel, where it is asked for: STRETTO_WHEEL_CACHE=1, or `make wheel`.

Such a wheel is for one platform and one version of Python, and its code for any processor of that architecture.
Without it a wheel is pure Python, and the first start compiles.

The code is Numba's cache: files that Numba links in the process that reads them, against itself. Nothing of it is bound
to the C library of the machine that builds, so on Linux the wheel names the oldest one that Numba's own wheels need,
by a name that indexes accept.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCodeHook(BuildHookInterface):
    """Runs `stretto warm` on the sources at hand."""

    def dependencies(self) -> list[str]:
        """Of the build: what Stretto itself needs."""
        return list(self.metadata.core.dependencies) if _is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not _is_asked_for():
            return
        self._made = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "stretto", "warm", "--any-processor", "--out", self._made.name]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": self.root})
        build_data["force_include"][str(Path(self._made.name) / "compiled")] = "stretto/_compiled"
        build_data["pure_python"] = False
        if sys.platform == "linux":
            build_data["tag"] = linux_tag()
        else:
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            self._made.cleanup()


def linux_tag() -> str:
    """This version of Python, none of its binary interface, and this architecture."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-none-manylinux_2_28_{platform.machine()}"


def _is_asked_for() -> bool:
    return os.environ.get("STRETTO_WHEEL_CACHE") == "1"
