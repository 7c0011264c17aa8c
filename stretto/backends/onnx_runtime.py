"""ONNX Runtime, as everything here gets it: it tells nobody that it is used."""

from __future__ import annotations

from typing import Any

from stretto.backends.model import BackendError


def onnx_runtime() -> Any:
    """BackendError where it is not installed. Its telemetry is off since stretto.backends was imported."""
    try:
        import onnxruntime
    except ImportError:
        raise BackendError("ONNX models need ONNX Runtime; install it with: pip install onnxruntime") from None
    return onnxruntime
