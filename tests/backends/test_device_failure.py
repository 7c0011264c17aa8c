"""Which errors of PyTorch and of ONNX Runtime are the GPU's own."""

from __future__ import annotations

import pytest

from stretto.backends.device_failure import device_failure
from stretto.backends.model import BatchFailure, DeviceLost

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
def test_a_device_that_is_lost(cause: str, before: str, behind: str) -> None:
    failure = device_failure("net", before + cause + behind)
    assert isinstance(failure, DeviceLost) and str(failure) == f"the GPU failed while net ran: {cause}"


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
