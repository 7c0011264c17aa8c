"""Python functions as models: what they take and give is checked, and what they raise is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.callable import CallableModel, named_object
from stretto.backends.load import load_model
from stretto.backends.model import BackendError, BatchFailure, TensorSpec
from stretto.backends.source import ModelSource, backend_of
from stretto.repository.model_code import code_sha256

TAKES = (TensorSpec("x", "float32", (2,)),)
GIVES = (TensorSpec("scores", "float32", (3,)),)
BATCH = {"x": np.ones((4, 2), np.float32)}

MODULE = """
import numpy as np
def scores(batch):
    return np.zeros((len(batch), 3), np.float32)
class Loaded:
    def __init__(self):
        self.bias = 7.0
    def __call__(self, batch):
        return np.full((len(batch), 3), self.bias, np.float32)
class Broken:
    def __init__(self):
        raise RuntimeError("no weights")
class Exits:
    def __init__(self):
        raise SystemExit(0)
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "named_models.py").write_text(MODULE)
    (tmp_path / "broken_models.py").write_text("raise OSError('no disk')\n")
    (tmp_path / "exiting_models.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "named_models"


def test_a_function_gets_the_very_array(module: str) -> None:
    seen = []
    model = CallableModel(lambda batch: seen.append(batch) or batch, TAKES)
    assert model.run(BATCH)["output"].shape == (4, 2)
    assert seen[0] is BATCH["x"]


def test_code_is_named_by_module_and_function(module: str) -> None:
    source = ModelSource("callable", code=f"{module}:scores", inputs=TAKES, outputs=GIVES)
    assert load_model(source).run(BATCH)["scores"].shape == (4, 3)
    model = load_model(ModelSource("callable", code=f"{module}:Loaded", inputs=TAKES))
    assert (model.run(BATCH)["output"] == 7).all()
    model.prepare((8,))
    assert model.memory_bytes == 8 * 2 * 4
    model.unload()
    with pytest.raises(BackendError, match="named_models:Loaded was unloaded"):
        model.run(BATCH)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("scores", "is no code reference; write module:function"),
        ("os.path:join; rm", "is no code reference"),
        ("there_is_none:scores", "there is no module there_is_none"),
        ("named_models:missing", "module named_models has no missing"),
        ("named_models:number", "is a int, which cannot be called"),
        ("named_models:Broken", "could not be made: RuntimeError: no weights"),
        ("named_models:Exits", "could not be made: SystemExit: 0"),
        ("broken_models:scores", "cannot be imported: OSError: no disk"),
        ("exiting_models:scores", "cannot be imported: SystemExit"),
    ],
)
def test_bad_references_are_sentences(module: str, code: str, words: str) -> None:
    with pytest.raises(BackendError, match=words):
        load_model(ModelSource("callable", code=code, inputs=TAKES))


def test_what_is_missing_is_told() -> None:
    with pytest.raises(BackendError, match="needs code to call"):
        load_model(ModelSource("callable", inputs=TAKES))
    with pytest.raises(BackendError, match="declare its input tensors"):
        load_model(ModelSource("callable", code="os:getcwd"))
    with pytest.raises(BackendError, match="leave the device at cpu"):
        load_model(ModelSource("callable", code="os:getcwd", inputs=TAKES, device="cuda"))


def test_wrong_answers_are_failures() -> None:
    for function, words in (
        (lambda batch: batch[:1], r"must have shape \(batch, 3\) with a batch of 4, not \(1, 2\)"),
        (lambda batch: {"other": batch}, "gave no output scores"),
        (lambda batch: [object()], "gave a list, which is no array of numbers"),
        (lambda batch: 1 / 0, "failed on a batch of 4: ZeroDivisionError: division by zero"),
        (lambda batch: sys.exit(3), "failed on a batch of 4: SystemExit: 3"),
    ):
        with pytest.raises(BatchFailure, match=words):
            CallableModel(function, TAKES, GIVES).run(BATCH)


def test_several_inputs_come_by_name() -> None:
    takes = (TensorSpec("a", "float32", ()), TensorSpec("b", "float32", ()))
    model = CallableModel(lambda given: {"sum": given["a"] + given["b"]}, takes)
    assert model.run({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})["sum"].tolist() == [2, 2, 2]


def test_references_reach_only_what_a_module_holds() -> None:
    assert named_object("math:sqrt")(4) == 2


def test_sources_are_checked() -> None:
    for wrong, words in (
        ({"backend": "tensorflow"}, "there is no backend 'tensorflow'; there are onnx, torch, callable"),
        ({"device": "tpu"}, "there is no device 'tpu'"),
        ({"threads": 0}, "threads is 0; it must be from 1"),
        ({"precision": "int4"}, "there is no precision 'int4'; there are float32"),
        ({"precision": "float16"}, "precision float16 is for the torch backend"),
    ):
        with pytest.raises(BackendError, match=words):
            ModelSource(**wrong)  # type: ignore[arg-type]
    assert backend_of(Path("a/model.ONNX")) == "onnx" and backend_of(Path("model.safetensors")) == "torch"
    with pytest.raises(BackendError, match=r"model\.pth is no model that Stretto can run; .* never a pickle"):
        backend_of(Path("model.pth"))
    with pytest.raises(BackendError, match="tensors hold numbers"):
        TensorSpec("x", "string", ())


def beside(folder: Path, bias: float) -> ModelSource:
    """A model whose module lies in a folder that is not on Python's path, and imports a neighbour."""
    folder.mkdir(exist_ok=True)
    (folder / "own_model.py").write_text(
        "import numpy as np\nfrom .settings import BIAS\n\n\n"
        "def scores(batch):\n    return np.full((len(batch), 3), BIAS, np.float32)\n"
    )
    (folder / "settings.py").write_text(f"BIAS = {bias}\n")
    return ModelSource("callable", code="own_model:scores", inputs=TAKES, outputs=GIVES, folder=folder)


def test_a_module_beside_the_model_is_found(tmp_path: Path) -> None:
    """A repository could not hold a callable: its module had to be installed."""
    before = list(sys.path)
    one, two = (load_model(beside(tmp_path / name, bias)) for name, bias in (("one", 1.0), ("two", 2.0)))
    assert (one.run(BATCH)["scores"] == 1).all(), "modules of one name in two variants are two modules"
    assert (two.run(BATCH)["scores"] == 2).all()
    assert (load_model(beside(tmp_path / "one", 5.0)).run(BATCH)["scores"] == 5).all(), "a changed one is read anew"
    assert sys.path == before and "own_model" not in sys.modules
    with pytest.raises(BackendError, match=r"no module other_model, nor other_model\.py beside the model"):
        load_model(replace(beside(tmp_path / "one", 1.0), code="other_model:scores"))
    (tmp_path / "one" / "own_model.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(BackendError, match="no module not_installed_anywhere; install"):
        load_model(ModelSource("callable", code="own_model:scores", inputs=TAKES, folder=tmp_path / "one"))
    assert named_object("math:sqrt", tmp_path / "one")(4) == 2, "else what is installed"


def test_a_changed_module_is_another_model(tmp_path: Path) -> None:
    beside(tmp_path / "one", 1.0)
    before = code_sha256(tmp_path / "one", "own_model:scores")
    assert code_sha256(tmp_path / "one", "math:sqrt") == code_sha256(tmp_path / "two", "math:sqrt")
    beside(tmp_path / "one", 3.0)
    assert code_sha256(tmp_path / "one", "own_model:scores") != before
