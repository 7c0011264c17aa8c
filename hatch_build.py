"""Puts compiled code into the wheel, where it is asked for: STRETTO_WHEEL_CACHE=1, or `make wheel`.

Such a wheel is for one platform and one version of Python, and its code for any processor of that architecture.
Without it a wheel is pure Python, and the first start compiles.
"""

from __future__ import annotations

import os
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
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            self._made.cleanup()


def _is_asked_for() -> bool:
    return os.environ.get("STRETTO_WHEEL_CACHE") == "1"
