"""What an error of a runtime says about the GPU under it: its memory is used up, it is gone, or a model spoilt it.

A GPU that is gone is nobody's fault; what a model's own kernels did to it, as an illegal access, is the model's.
"""

from __future__ import annotations

import re

from stretto.backends.model import BatchFailure, DeviceLost, DeviceSpoilt

# PyTorch writes "CUDA out of memory" and "CUDA error: …", ONNX Runtime "Failed to allocate memory for requested buffer"
# and "CUDNN failure 8: … ; GPU=0 ; file=…".
FULL = re.compile(r"\bcuda\b[^;\n]*\bout of memory|failed to allocate memory for requested buffer", re.I)
FAILED = re.compile(
    r"\bcu(da|dnn|blas|fft|rand|sparse|solver)\w* (error|failure|driver)\b[^;\n]{0,200}|\bdevice lost", re.I
)
GONE = re.compile(
    r"no cuda-capable device|no cuda gpus|cuda.*(busy or unavailable|uncorrectable|unknown error)|\bdevice lost"
    r"|cuda driver|cuda.*(driver shutting down|initialization error|not yet initialized)",
    re.I,
)


def device_failure(label: str, message: str, *, is_load: bool = False) -> BatchFailure | DeviceLost | None:
    """What to raise in place of the runtime's own error; None where that is the model's, and not the device's.
    `is_load`: what a model is refused while it is loaded leaves the GPU as it was.
    """
    if FULL.search(message):
        return BatchFailure(f"there is not enough memory left on the GPU for {label}")
    failed, is_gone = FAILED.search(message), GONE.search(message) is not None
    if not is_gone and (failed is None or is_load):
        return None
    cause = failed.group() if failed else message.partition("\n")[0][:200]
    return (DeviceLost if is_gone else DeviceSpoilt)(f"the GPU failed under {label}: {cause.strip()}")


class device_errors:
    """Names those of PyTorch, whose own errors of CUDA, and of memory that is used up, are RuntimeErrors."""

    def __init__(self, label: str, is_load: bool = False):
        self._label, self._is_load = label, is_load

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, RuntimeError):
            return
        failure = device_failure(self._label, str(error), is_load=self._is_load)
        if isinstance(failure, BatchFailure):
            import torch

            torch.cuda.empty_cache()
        if failure is not None:
            raise failure from None
