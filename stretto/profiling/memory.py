"""Memory that a model takes: what loading it adds, and what its largest batch adds at the peak.

On the CPU this is measured in a fresh process, because memory that an earlier model freed would be reused unseen. There
the model is loaded twice and the second load counts, so that what the runtime itself needs once is left out. On a GPU
PyTorch knows what it has taken, and of ONNX Runtime the driver does, as long as nobody else begins or ends there.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, Model, TensorSpec
from stretto.backends.resident import give_back, peak_bytes, reset_peak, resident_bytes
from stretto.backends.source import ModelSource
from stretto.core.errors import ProfileError, StrettoError

ONCE_ABOVE_BYTES = 2**30  # a file this large is loaded once only
TIMEOUT_S = 300.0  # of two loads and some runs: a model that takes longer is of no use to a server
PLAIN = (
    "backend",
    "code",
    "threads",
    "device",
    "precision",
    "channels_last",
    "divide_by",
)  # fields of a source that are JSON as they are


@dataclass(frozen=True)
class MemoryUse:
    """`loaded_bytes` as long as the model is there, `dynamic_bytes` more while its largest batch runs."""

    loaded_bytes: int
    dynamic_bytes: int


def measure_memory(source: ModelSource, batch: int) -> MemoryUse:
    """Loads the model and runs it, with `batch` as its largest batch. A model that takes longer than `TIMEOUT_S` on the
    CPU, or ends its process, is refused.
    """
    if source.device != "cpu":
        return on_gpu(source, batch)
    question = json.dumps({"source": _as_json(source), "batch": batch})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stretto.profiling.memory"],
            input=question,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        return MemoryUse(int(answer["loaded"]), int(answer["dynamic"]))
    except subprocess.TimeoutExpired:
        raise ProfileError(f"{source.label} did not load and answer within {TIMEOUT_S:g} s") from None
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
            ended = signal.Signals(-error.returncode).name
            raise ProfileError(f"{source.label} ended the process that loaded and ran it ({ended})") from None
        # A callable that only this process can import, or no room for a second process: less exact, but an answer.
        return in_this_process(source, batch)


def in_this_process(source: ModelSource, batch: int) -> MemoryUse:
    """By the growth of this process."""
    is_small = source.file is None or source.file.stat().st_size <= ONCE_ABOVE_BYTES
    first: Model | None = load_model(source) if is_small else None
    if first is not None:
        _run_zeros(first, 1)
    give_back()
    before = resident_bytes()
    model = load_model(source)
    loaded = max(0, resident_bytes() - before)
    _run_zeros(model, 1)
    at_rest = resident_bytes()
    reset_peak()
    _run_zeros(model, batch)
    dynamic = max(0, peak_bytes() - at_rest)
    known = model.memory_bytes
    model.unload()
    if first is not None:
        first.unload()
    return MemoryUse(loaded or known, dynamic)


def on_gpu(source: ModelSource, batch: int) -> MemoryUse:
    """All that it takes of the GPU: the ladder of graphs up to the largest batch is there as long as the model is."""
    taken_bytes = torch_bytes if source.backend == "torch" else used_bytes
    load_model(source).unload()  # what the device itself needs once is left out
    before = taken_bytes(source.device)
    model = load_model(source)
    model.prepare((model.fixed_batch or batch,))
    loaded = taken_bytes(source.device) - before
    model.unload()
    return MemoryUse(max(0, loaded), 0)


def torch_bytes(device: str) -> int:
    """What PyTorch has taken of the GPU for this process, with the pools of graphs, in which nothing is allocated
    between two batches.
    """
    import torch

    gc.collect()  # what an earlier model held
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved(device))


def used_bytes(device: str) -> int:
    """What is used of the GPU, by whomever: ONNX Runtime does not say what it has taken."""
    gc.collect()
    number = device.partition(":")[2] or "0"
    with suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info(f"cuda:{number}")
            return int(total - free)
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if int(number) < len(seen):
        number = seen[int(number)]  # nvidia-smi counts all that there are
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={number}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
        return int(told.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise BackendError(f"nvidia-smi does not say what is used of {device} ({error})") from None


def _run_zeros(model: Model, batch: int) -> None:
    batch = model.fixed_batch or batch
    model.run({spec.name: spec.zeros(batch) for spec in model.inputs})


def _as_json(source: ModelSource) -> dict[str, Any]:
    return {
        **{key: getattr(source, key) for key in PLAIN},
        **{name: None if path is None else str(path.absolute()) for name, path in _paths(source).items()},
        "inputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in source.inputs],
        "outputs": [[spec.name, spec.dtype, list(spec.shape)] for spec in source.outputs],
    }


def _paths(source: ModelSource) -> dict[str, Path | None]:
    return {"file": source.file, "folder": source.folder}


def _from_json(value: dict[str, Any]) -> ModelSource:
    inputs, outputs = (
        tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in value[what])
        for what in ("inputs", "outputs")
    )
    file, folder = (None if value[what] is None else Path(value[what]) for what in ("file", "folder"))
    plain = {key: value[key] for key in PLAIN}
    return ModelSource(file=file, folder=folder, inputs=inputs, outputs=outputs, **plain)


def main() -> int:
    """The fresh process: a question on standard input, an answer on standard output."""
    question = json.loads(sys.stdin.read())
    try:
        use = in_this_process(_from_json(question["source"]), int(question["batch"]))
    except StrettoError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"loaded": use.loaded_bytes, "dynamic": use.dynamic_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
