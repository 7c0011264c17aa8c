"""The zoo's networks with their trained weights, taken back from the ONNX files. Needs torch, but not onnx."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.repository.onnx_header import BYTES, GRAPH_INITIALIZER, MODEL_GRAPH, TENSOR_NAME, VARINT, Walk
from training.ladders import Rung
from training.networks import Classifier, Scaled, fold

TENSOR_DIM, TENSOR_KIND, TENSOR_RAW = 1, 2, 9  # field numbers of onnx.proto
FLOAT32 = 1


def onnx_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The float32 weights of a file as training.export writes it, by name."""
    weights: dict[str, NDArray[np.float32]] = {}
    with path.open("rb") as file:
        walk = Walk(file)
        for number, _, end in walk.fields(path.stat().st_size):
            if number == MODEL_GRAPH:
                for part, _, stop in walk.fields(end):
                    if part == GRAPH_INITIALIZER:
                        weights |= _weight(walk, stop)
    return weights


def _weight(walk: Walk, end: int) -> dict[str, NDArray[np.float32]]:
    """One tensor by its name; none where it is no float32 or is not kept as plain bytes."""
    name, kind, sizes, content = "", 0, [], None
    for number, wire, stop in walk.fields(end):
        if (number, wire) == (TENSOR_NAME, BYTES):
            name = walk.text(stop)
        elif (number, wire) == (TENSOR_KIND, VARINT):
            kind = walk.value
        elif (number, wire) == (TENSOR_DIM, VARINT):
            sizes.append(walk.value)
        elif (number, wire) == (TENSOR_DIM, BYTES):  # packed
            while walk.file.tell() < stop:
                sizes.append(walk.varint())
        elif (number, wire) == (TENSOR_RAW, BYTES):
            content = walk.file.read(stop - walk.file.tell())
    if kind != FLOAT32 or content is None:
        return {}
    return {name: np.frombuffer(content, "<f4").reshape(sizes).copy()}


def trained_network(rung: Rung, folder: Path) -> tuple[Classifier, tuple[int, ...]]:
    """The folded network of a variant's folder as it is exported, and its input's shape without the batch."""
    shape = tuple(json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["input_shape"])
    ones = torch.ones(1, shape[0], *(1 for _ in shape[1:]))  # the scale is in the weights already
    network = Classifier(fold(Scaled(rung.network(), ones))).eval()
    found = {name: torch.from_numpy(array) for name, array in onnx_weights(folder / "model.onnx").items()}
    wanted = network.state_dict()
    missing = [name for name, weight in wanted.items() if name not in found or found[name].shape != weight.shape]
    if missing:
        raise SystemExit(f"{folder.name}/model.onnx has no weights {', '.join(missing[:3])}; train the zoo anew")
    network.load_state_dict({name: found[name] for name in wanted})
    return network, shape
