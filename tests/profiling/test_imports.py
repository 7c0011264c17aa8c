"""Profiling runs on machines that have little else: a GPU machine with PyTorch and numpy alone."""

from __future__ import annotations

import subprocess
import sys

LIGHT = """
import sys
heavy = {"numba", "scipy", "typer", "rich", "matplotlib", "onnxruntime", "torch", "onnx"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in heavy:
            raise ImportError(name, name=name)
sys.meta_path.insert(0, Refuse())
import stretto.backends.callable, stretto.backends.cuda, stretto.backends.failure, stretto.backends.onnx
import stretto.backends.program, stretto.backends.source, stretto.backends.torch
import stretto.profiling.memory, stretto.profiling.session, stretto.profiling.stored, stretto.profiling.variant
sys.path.insert(0, "benchmarks")
import gpu_profile
gpu_profile.main()
"""


def test_nothing_heavy_is_needed_before_a_model_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT, "--budget-s", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "gpu_profile needs PyTorch and torchvision (torch is missing); the committed result stays as it is.\n"
    )
