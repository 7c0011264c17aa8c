"""An application that takes bytes, with models of the zoo that take floats: over HTTP, in a thread and in a process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stretto.core.encoding import encoded
from stretto.repository.read import zoo_folder
from tests.api.serving import DEADLINE_MS, Running, repository_of, values_of

NAME = "mnist"
INFER = f"/v2/models/{NAME}/infer"
APP = """\
slo_ms = 25

[input]
shape = [1, 28, 28]
dtype = "uint8"
divide_by = 255
encodings = ["raw", "png"]

[output]
name = "probabilities"

[limits]
max_batch = 32
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo's application, made to take bytes."""
    root = repository_of(tmp_path_factory.mktemp("bytes"), NAME)
    (root / NAME / "app.toml").write_text(APP)
    return root


def images(count: int) -> np.ndarray:
    with np.load(zoo_folder() / NAME / "sample.npz") as stored:
        return np.asarray(stored["inputs"][:count], np.uint8).reshape(count, 1, 28, 28)


def question(rows: np.ndarray, datatype: str) -> bytes:
    tensor = {"name": "input", "datatype": datatype, "shape": list(rows.shape), "data": rows.ravel().tolist()}
    return json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}).encode()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_bytes_are_answered_as_the_floats_that_they_stand_for(folder: Path, executor: str) -> None:
    rows = images(4)
    with Running(zoo_folder() / NAME, only=("cnn",)) as server:
        expected = values_of(server.ask("POST", INFER, question(rows / 255, "FP32")))
    with Running(folder, only=("cnn",), executor=executor) as server:
        assert server.ask("GET", f"/v2/models/{NAME}").content["inputs"][0]["datatype"] == "UINT8"
        plain = server.ask("POST", INFER, question(rows, "UINT8"))
        np.testing.assert_allclose(values_of(plain), expected, atol=1e-5)

        raw = rows.tobytes()
        tensor = {"name": "input", "datatype": "UINT8", "shape": [4, 1, 28, 28]}
        head = {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]}
        text = json.dumps(head | {"parameters": {"deadline_ms": DEADLINE_MS}}).encode()
        binary = server.ask("POST", INFER, text + raw, Inference_Header_Content_Length=str(len(text)))
        np.testing.assert_allclose(values_of(binary), expected, atol=1e-5)

        refused = server.ask("POST", INFER, question(rows / 255, "FP32"))
        assert refused.status == 400 and "must be UINT8, not FP32" in refused.content["error"]


def test_an_encoded_image_stays_bytes_too(folder: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")
    rows = images(1)
    [png] = encoded(rows, "png")
    with Running(folder, only=("cnn",)) as server:
        expected = values_of(server.ask("POST", INFER, question(rows, "UINT8")))
        raw = len(png).to_bytes(4, "little") + png
        tensor = {"name": "input", "datatype": "BYTES", "shape": [1]}
        tensor |= {"parameters": {"binary_data_size": len(raw), "encoding": "png"}}
        text = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}).encode()
        reply = server.ask("POST", INFER, text + raw, Inference_Header_Content_Length=str(len(text)))
        np.testing.assert_allclose(values_of(reply), expected, atol=1e-6)
