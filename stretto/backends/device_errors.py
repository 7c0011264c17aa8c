"""What a GPU does to a whole process, by the words of PyTorch's errors: its memory is used up, or it is of no more use.

A GPU that is gone is nobody's fault; what a model's own kernels did to it, as an illegal access, is the model's.
"""

from __future__ import annotations

from stretto.backends.callable import reason_of
from stretto.backends.model import BatchFailure, DeviceLost, DeviceSpoilt

SIGNS_OF_CUDA = ("CUDA error", "CUDA driver", "cuDNN error")
SIGNS_OF_LOSS = (
    "no CUDA-capable device",
    "No CUDA GPUs",
    "busy or unavailable",
    "uncorrectable",
    "unknown error",
    "CUDA driver",
    "driver shutting down",
    "initialization error",
    "not yet initialized",
)


class device_errors:
    """Names them. `is_load`: what a model is refused while it is loaded leaves the GPU as it was."""

    def __init__(self, label: str, is_load: bool = False):
        self._label, self._is_load = label, is_load

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, RuntimeError):  # which is what PyTorch raises for CUDA's own errors
            return
        import torch

        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            raise BatchFailure(f"there is not enough memory left on the GPU for {self._label}") from None
        words = str(error)
        told = f"the GPU failed under {self._label}: {reason_of(error)}"
        if "CUDA" in words and any(sign in words for sign in SIGNS_OF_LOSS):
            raise DeviceLost(told) from None
        if any(sign in words for sign in SIGNS_OF_CUDA) and not self._is_load:
            raise DeviceSpoilt(told) from None
