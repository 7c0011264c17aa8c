"""Writes a trained network as ONNX, and refuses it unless ONNX Runtime answers as the trained network does."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from training.networks import Classifier, Scaled, fold

OPSET = 18
TOLERANCE = 1e-4  # largest difference of a probability
BATCHES = (1, 2, 7, 32)


def export(network: Scaled, shape: tuple[int, ...], samples: Tensor, path: Path) -> nn.Module:
    """Write `path`, check it on the samples, and return the folded network that it holds."""
    folded = Classifier(fold(network)).eval()
    model = _converted(folded, shape)
    _strip(model)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    _check(path, network, samples.cpu())
    return folded


def _converted(folded: nn.Module, shape: tuple[int, ...]) -> onnx.ModelProto:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            folded,
            (torch.rand(2, *shape),),
            input_names=["input"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return onnx.load_from_string(program.model_proto.SerializeToString())


def _strip(model: onnx.ModelProto) -> None:
    """The exporter notes stack traces and file names on every node; none of that belongs in a published file."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    graph.name = "classifier"


def _check(path: Path, network: Scaled, samples: Tensor) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    reference = Classifier(network).float().cpu().eval()
    with torch.no_grad():
        expected = reference(samples).numpy()
    answered = session.run(None, {"input": samples.numpy()})[0]
    difference = float(np.abs(answered - expected).max())
    if difference > TOLERANCE or (answered.argmax(1) != expected.argmax(1)).any():
        raise RuntimeError(f"{path.parent.name}: the exported model differs by {difference:.2e} from the trained one")
    for batch in BATCHES:
        part = session.run(None, {"input": samples[:batch].numpy()})[0]
        if part.shape != expected[:batch].shape or np.abs(part - expected[:batch]).max() > TOLERANCE:
            raise RuntimeError(f"{path.parent.name}: the exported model fails at batch {batch}")
