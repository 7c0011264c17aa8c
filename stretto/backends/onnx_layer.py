"""A named tensor inside an ONNX graph, as features of an input.

Serialised protobuf messages merge when they stand one after the other, so a graph gets one more output by a few bytes
behind the file: neither onnx nor a second model file is needed. Only the nodes that lead to the tensor are run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array, BackendError
from stretto.backends.onnx import DTYPES
from stretto.backends.onnx_files import read_model, weights_for
from stretto.backends.onnx_runtime import onnx_runtime
from stretto.backends.onnx_session import SILENT, load_problem, run_problem
from stretto.core.protobuf import MAX_MESSAGE_BYTES, field

MODEL_GRAPH, GRAPH_OUTPUT, VALUE_NAME = 7, 12, 1  # field numbers of onnx.proto


class OnnxLayer:
    """One session; it may be called from several threads at once. `divide_by` is for bytes, where it takes floats."""

    def __init__(self, file: Path, input_name: str, layer: str, threads: int = 1, divide_by: float | None = None):
        onnxruntime = onnx_runtime()
        self._label = file.name
        self._input, self._layer = input_name, layer
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        content = read_model(file)
        if len(content) > MAX_MESSAGE_BYTES:
            raise BackendError(f"{self._label} is too large for its layers to be read; keep its weights beside it")
        try:
            with weights_for(options, file, content):
                plain = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
                self._session: Any = plain
                if layer not in (node.name for node in plain.get_outputs()):
                    self._session = onnxruntime.InferenceSession(
                        content + graph_output(layer), options, providers=["CPUExecutionProvider"]
                    )
        except BackendError:
            raise
        except Exception as error:  # the runtime's errors have no common parent
            if "does not exist in the graph" in str(error):
                raise BackendError(f"{self._label} has no tensor {layer[:80]!r}; take one of its graph") from None
            raise BackendError(load_problem(self._label, str(error))) from None
        takes = np.dtype(next((DTYPES.get(node.type, "object") for node in self._session.get_inputs()), "object"))
        self._floats = takes if takes.kind == "f" else None
        self._divide_by = divide_by
        self._run_options = onnxruntime.RunOptions()
        self._run_options.only_execute_path_to_fetches = True

    def __call__(self, inputs: Array) -> NDArray[np.float32]:
        """[queries, features]; a tensor of more axes is laid out flat."""
        if self._divide_by is not None and self._floats is not None and inputs.dtype == np.uint8:
            inputs = (inputs / np.float32(self._divide_by)).astype(self._floats)
        try:
            (output,) = self._session.run([self._layer], {self._input: inputs}, self._run_options)
        except Exception as error:
            raise BackendError(f"{self._label} failed at {self._layer[:80]}: {run_problem(str(error))}") from None
        features = np.asarray(output)
        if features.dtype.kind not in "biuf" or not features.ndim or len(features) != len(inputs):
            raise BackendError(f"tensor {self._layer[:80]} of {self._label} is not one row of numbers for each query")
        return np.ascontiguousarray(features.reshape(len(features), -1), dtype=np.float32)


def graph_output(name: str) -> bytes:
    """ModelProto{graph: GraphProto{output: ValueInfoProto{name}}}; the runtime finds out type and shape itself."""
    return field(MODEL_GRAPH, field(GRAPH_OUTPUT, field(VALUE_NAME, name.encode())))
