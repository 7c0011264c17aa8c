"""Which errors of PyTorch and of ONNX Runtime are the GPU's own."""

from __future__ import annotations

import pytest

from stretto.backends.device_failure import device_errors, device_failure
from stretto.backends.model import BatchFailure, DeviceLost, DeviceSpoilt

IN_ORT = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Name:'/c/Conv' "
    "Status Message: /onnxruntime_src/cuda_call.cc:129 std::conditional_t<THRW, void, Status> CudaCall(ERRTYPE) "
)
BEHIND = " ; GPU=0 ; hostname=h ; file=/src/conv.cc ; line=448 ; expr=cudaStreamSynchronize(stream)"


@pytest.mark.parametrize(
    "cause",
    [
        "CUDA failure 700: an illegal memory access was encountered",
        "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDA error: unspecified launch failure",
        "CUDA driver error: unknown error",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "device lost",
    ],
)
@pytest.mark.parametrize(("before", "behind"), [("", ""), ("", "\nCUDA kernel errors might be late"), (IN_ORT, BEHIND)])
def test_a_device_that_failed(cause: str, before: str, behind: str) -> None:
    failure = device_failure("net", before + cause + behind)
    assert isinstance(failure, DeviceLost) and str(failure) == f"the GPU failed under net: {cause}"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be late",
        IN_ORT + "CUDA failure 2: out of memory" + BEHIND,
        IN_ORT
        + "bfc_arena.cc:376 void* AllocateRawInternal() Failed to allocate memory for requested buffer of size 9",
    ],
)
def test_a_device_whose_memory_is_used_up(message: str) -> None:
    failure = device_failure("net", message)
    assert isinstance(failure, BatchFailure) and failure.reason == "there is not enough memory left on the GPU for net"


@pytest.mark.parametrize(
    "message",
    ["", "indices element out of data bounds, idx=9", "the cache is out of memory", "no kernel for CUDA and this type"],
)
def test_what_is_the_models_own(message: str) -> None:
    assert device_failure("net", message) is None


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
    torch = pytest.importorskip("torch")
    with pytest.raises(BatchFailure, match="not enough memory left on the GPU for a model"), device_errors("a model"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    for error in (RuntimeError("unknown error in the model"), ValueError("CUDA error")):
        with pytest.raises(type(error), match=str(error)), device_errors("a model"):
            raise error
