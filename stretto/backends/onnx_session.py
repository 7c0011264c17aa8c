"""Sessions of ONNX Runtime: what one is made with, on the CPU or on a GPU, and its messages as sentences."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from typing import Any

from stretto.backends.device_failure import device_failure
from stretto.backends.model import BackendError
from stretto.backends.onnx_files import read_model, weights_for
from stretto.backends.onnx_runtime import onnx_runtime
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.repository.model_digest import model_file_sha256

SILENT = 4  # only fatal messages; what goes wrong is raised, with a sentence
ERRORS = 3  # and errors, as of a library that cannot be loaded
MAX_REASON = 300


def providers_of(source: ModelSource) -> list[Any]:
    """What runs a model's nodes, the first that can."""
    onnxruntime = onnx_runtime()
    if source.device == "cpu":
        return ["CPUExecutionProvider"]
    providers = gpu_providers(source, onnxruntime)
    onnxruntime.set_default_logger_severity(ERRORS)  # it warns of plug-ins that nobody asked for, at every session
    onnxruntime.preload_dlls()  # CUDA's libraries may lie in packages of pip, as PyTorch's do, where no loader looks
    return providers


def new_session(source: ModelSource, providers: list[Any], content: bytes | None = None, spin: bool = False) -> Any:
    """Of the model's file, or of `content` in its place."""
    if source.file is None:
        raise BackendError("the onnx backend needs a model file, as model.onnx")
    onnxruntime = onnx_runtime()
    content = content or read_model(source.file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = source.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    try:
        with weights_for(options, source.file, content):
            session: Any = onnxruntime.InferenceSession(content, options, providers=providers)
    except BackendError:
        raise
    except Exception as error:  # the runtime's errors have no common parent
        failure = None if source.device == "cpu" else device_failure(source.label, str(error), is_load=True)
        raise failure or BackendError(load_problem(source.label, str(error))) from None
    session._model_bytes = None  # else it holds all of the model for as long as it lives
    if source.device != "cpu" and session.get_providers()[0] == "CPUExecutionProvider":
        raise BackendError(f"{source.label}: ONNX Runtime cannot use {source.device} here; it says why in its log")
    return session


def gpu_providers(source: ModelSource, onnxruntime: Any) -> list[Any]:
    """Of a session on a GPU: TensorRT where it is installed, then CUDA, which has every operator, then the CPU."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise BackendError(
            f"{source.label}: this ONNX Runtime has no CUDA; install onnxruntime-gpu in its place, or serve the model "
            "as an exported program of PyTorch"
        )
    device = int(source.device.partition(":")[2] or 0)
    # By itself CUDA would try every algorithm of every convolution, for seconds at the first run of each batch size.
    # And it would take twice the memory each time it needs more; here the largest batch comes first.
    cuda = {
        "device_id": device,
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    providers: list[Any] = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    if importlib.util.find_spec("tensorrt") is not None:
        providers.insert(0, ("TensorrtExecutionProvider", {"device_id": device} | engine_cache(source, device)))
    return providers


def engine_cache(source: ModelSource, device: int) -> dict[str, Any]:
    """Options of TensorRT: engines, which take long to build, are kept in the user's cache, if that can be written.

    ONNX Runtime knows its engines by the names in a graph, whatever the weights: each model, by content and by what
    its bytes are divided by, has a folder of its own. So has each GPU: two processes would write the same file.
    """
    from stretto.core.compile_cache import user_folder  # imports Numba

    file = source.file
    assert file is not None
    divided = str(source.divide_by) if source.takes_bytes else ""
    try:
        digest = hashlib.sha256(f"{model_file_sha256(file)} {divided}".encode()).hexdigest()
        folder = user_folder().parent / "engines" / f"{digest[:24]}-{device}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, StrettoError):
        return {}
    return {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder)}


def load_problem(label: str, message: str) -> str:
    """What ONNX Runtime says about a file, as a sentence without paths."""
    lowered = message.lower()
    if "external" in lowered:
        named = re.findall(r'"([^"]+)"|\[([^\]]+\.\w+)\]', message)
        file = next((part.rpartition("/")[2] for pair in named for part in pair if part), "")
        which = f" in {file}" if file else " in an external data file"
        if "out of bounds" in lowered or "file_length" in lowered:
            return f"{label} keeps weights in an external data file that is too short; copy the file again"
        if "escapes" in lowered or "outside" in lowered:
            return f"{label} keeps weights{which}, outside its own folder; put that file beside the model"
        return f"{label} keeps weights{which}, which cannot be read; put that file beside the model"
    if "protobuf" in lowered or "no graph was found" in lowered:
        return f"{label} is no ONNX model, or is cut off or damaged; copy or export it again"
    if "unsupported model ir version" in lowered or "opset" in lowered:
        return f"{label} was made for a newer ONNX Runtime ({run_problem(message)}); update it or export again"
    return f"{label} cannot be loaded: {run_problem(message)}; export it again"


def run_problem(message: str) -> str:
    """The last and most exact part of a message of ONNX Runtime, without the places in its source."""
    text = " ".join(message.split())
    for mark in (r".*ONNXRuntimeError\] : \d+ : \w+ : ", r".*Status Message: ", r"^Error in execution: "):
        text = re.sub(mark, "", text)
    text = re.sub(r"\S*\w+\.(cc|h|cpp):\d+ (\S+ ){0,4}?\S*\([^)]*\)\s*", "", text)
    text = re.sub(r"(?<!\S)\"?/\S+", "", text).strip()
    return text[:MAX_REASON].rstrip(". ") or "no reason given"
