"""Where a model comes from and how it is to run: plain data, so that it can be handed to another process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.backends.model import BackendError, TensorSpec

BACKENDS = ("onnx", "torch", "callable")
SUFFIXES = {".onnx": "onnx", ".pt2": "torch", ".safetensors": "torch"}
DEVICES = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16", "float16")
MAX_THREADS = 1024


@dataclass(frozen=True)
class ModelSource:
    """`code` is "module:function" and goes with torch (weights in a safetensors file) and callable.

    `inputs` and `outputs` say what the model takes and gives where its file does not; a file that does is held to them.
    """

    backend: str = "onnx"
    file: Path | None = None
    code: str | None = None
    threads: int = 1
    device: str = "cpu"
    precision: str = "float32"  # torch only: what the network computes in; its inputs and answers stay as they are
    channels_last: bool | None = None  # torch only: the layout of images; None: where the precision is a lower one
    divide_by: float | None = None  # where bytes are declared and the model takes floats: what each is divided by
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    folder: Path | None = None  # of the variant, where the module of `code` may lie

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise BackendError(f"there is no backend {self.backend[:40]!r}; there are {', '.join(BACKENDS)}")
        if self.device.partition(":")[0] not in DEVICES:
            raise BackendError(f"there is no device {self.device[:40]!r}; there are {', '.join(DEVICES)}")
        if self.precision not in PRECISIONS:
            raise BackendError(f"there is no precision {self.precision[:40]!r}; there are {', '.join(PRECISIONS)}")
        if self.precision != "float32" and self.backend != "torch":
            raise BackendError(f"precision {self.precision} is for the torch backend; leave it at float32")
        if self.channels_last and self.backend != "torch":
            raise BackendError("channels_last is for the torch backend; leave it out")
        if not 1 <= self.threads <= MAX_THREADS:
            raise BackendError(f"threads is {self.threads}; it must be from 1 to {MAX_THREADS}")

    @property
    def takes_bytes(self) -> bool:
        """Clients send bytes, which a model that takes floats gets divided."""
        return self.divide_by is not None and len(self.inputs) == 1 and self.inputs[0].dtype == "uint8"

    @property
    def has_channels_last(self) -> bool:
        return self.precision != "float32" if self.channels_last is None else self.channels_last

    @property
    def label(self) -> str:
        """The model in messages: its file's name, or its code."""
        return self.file.name if self.file is not None else self.code or self.backend


def backend_of(file: Path) -> str:
    """The backend that runs files of this ending."""
    try:
        return SUFFIXES[file.suffix.lower()]
    except KeyError:
        endings = ", ".join(SUFFIXES)
        raise BackendError(
            f"{file.name} is no model that Stretto can run; it runs {endings}, and never a pickle (.pt, .pth, .pkl)"
        ) from None
