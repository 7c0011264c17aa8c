"""What an error of a runtime says about the GPU under it: its memory is used up, or it is gone for this process."""

from __future__ import annotations

import re

from stretto.backends.model import BatchFailure, DeviceLost

# PyTorch writes "CUDA out of memory" and "CUDA error: …", ONNX Runtime "Failed to allocate memory for requested buffer"
# and "CUDNN failure 8: … ; GPU=0 ; file=…".
FULL = re.compile(r"\bcuda\b[^;\n]*\bout of memory|failed to allocate memory for requested buffer", re.I)
LOST = re.compile(
    r"\bcu(da|dnn|blas|fft|rand|sparse|solver)\w* (error|failure|driver)\b[^;\n]{0,200}|\bdevice lost", re.I
)


def device_failure(label: str, message: str) -> BatchFailure | DeviceLost | None:
    """What to raise in place of the runtime's own error; None where that is the model's, and not the device's."""
    if FULL.search(message):
        return BatchFailure(f"there is not enough memory left on the GPU for {label}")
    lost = LOST.search(message)
    return DeviceLost(f"the GPU failed while {label} ran: {lost.group().strip()}") if lost else None
