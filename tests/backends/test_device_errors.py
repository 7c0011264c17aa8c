"""What PyTorch says of a GPU, and whose fault that is."""

from __future__ import annotations

import pytest

from stretto.backends.device_errors import device_errors
from stretto.backends.model import BatchFailure, DeviceLost, DeviceSpoilt

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("is_load", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: no CUDA-capable device is detected",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "No CUDA GPUs are available",
    ],
)
def test_a_device_that_is_gone_is_nobodys_fault(words: str, is_load: bool) -> None:
    with pytest.raises(DeviceLost, match="the GPU failed under a model") as raised, device_errors("a model", is_load):
        raise RuntimeError(words)
    assert raised.type is DeviceLost


def test_what_a_model_did_to_its_device_is_its_own_fault() -> None:
    for words in ("CUDA error: device-side assert triggered", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"):
        with pytest.raises(DeviceSpoilt), device_errors("a model"):
            raise RuntimeError(words)
        with pytest.raises(RuntimeError, match=words), device_errors("a model", is_load=True):
            raise RuntimeError(words)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(BatchFailure, match="not enough memory left on the GPU for a model"), device_errors("a model"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    for error in (RuntimeError("unknown error in the model"), ValueError("CUDA error")):
        with pytest.raises(type(error), match=str(error)), device_errors("a model"):
            raise error
