"""Files that an ONNX model names: none outside its folder is ever read, and none is mapped while others may write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from stretto.backends.load import load_model
from stretto.backends.model import BackendError, TensorSpec
from stretto.backends.onnx_layer import OnnxLayer
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.live.processes import ProcessExecutor
from stretto.repository.model_digest import model_file_sha256
from stretto.repository.onnx_header import read_onnx_header
from tests.backends.onnx_models import linear, save
from tests.live.real import ROOT, asked, of_models, serving, within

NUMBERS = np.arange(4, dtype=np.float32)
OUTSIDE = "../secret.bin"


def named(file: str, name: str = "") -> Any:
    """Four numbers that lie in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", file), ("offset", "0"), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def constant(file: str, output: str) -> Any:
    return helper.make_node("Constant", [], [output], value=named(file))


def body(name: str, nodes: list[Any], weights: list[Any] | None = None) -> Any:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"of_{name}", 1, [4])], weights or [])


def adding(nodes: list[Any], weights: list[Any] | None = None, functions: list[Any] | None = None) -> Any:
    """y = x + w, where the nodes or the weights make w."""
    tensors = [helper.make_tensor_value_info(name, 1, ["batch", 4]) for name in "xy"]
    nodes = [*nodes, helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "model", tensors[:1], tensors[1:], weights or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions or [])


def of_weight(file: str) -> Any:
    return adding([], [named(file, "w")])


def of_constant(file: str) -> Any:
    return adding([constant(file, "w")])


def branching(one: Any, other: Any) -> Any:
    node = helper.make_node("If", ["c"], ["w"], then_branch=one, else_branch=other)
    return adding([node], [numpy_helper.from_array(np.array(True), "c")])


def of_a_branch_s_weight(file: str) -> Any:
    copied = [helper.make_node("Identity", ["inner"], ["of_one"])]
    plain = [helper.make_node("Constant", [], ["of_other"], value=numpy_helper.from_array(NUMBERS))]
    return branching(body("one", copied, [named(file, "inner")]), body("other", plain))


def of_a_branch_s_constant(file: str) -> Any:
    plain = [helper.make_node("Constant", [], ["of_other"], value=numpy_helper.from_array(NUMBERS))]
    return branching(body("one", [constant(file, "of_one")]), body("other", plain))


def of_a_function(file: str) -> Any:
    inside = [constant(file, "q")]
    function = helper.make_function("local", "F", [], ["q"], inside, [helper.make_opsetid("", 17)])
    return adding([helper.make_node("F", [], ["w"], domain="local")], functions=[function])


def nested(kind: str) -> Callable[[str], Any]:
    def make(file: str) -> Any:
        """The body is not sound, and is not to be looked at so far."""
        inner = helper.make_graph([constant(file, "o")], "inner", [], [helper.make_tensor_value_info("o", 1, [4])])
        outer = body("outer", [helper.make_node("If", ["c"], ["of_outer"], then_branch=inner, else_branch=inner)])
        return adding([helper.make_node(kind, ["x"], ["w"], body=outer)])

    return make


def of_a_sparse_weight(file: str) -> Any:
    model = adding([], [numpy_helper.from_array(NUMBERS, "w")])
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(NUMBERS, "s"))
    sparse.indices.CopyFrom(named(file))
    sparse.dims.append(4)
    return model


def of_a_sparse_constant(file: str) -> Any:
    model = adding([helper.make_node("Constant", [], ["w"], value_float=1.0)])
    attribute = model.graph.node[0].attribute[0]
    attribute.Clear()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.values.CopyFrom(named(file))
    return model


def of_lists(file: str) -> Any:
    model = adding([], [numpy_helper.from_array(NUMBERS, "w")])
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "many", onnx.AttributeProto.GRAPHS
    attribute.graphs.add().initializer.append(named("model.onnx"))
    attribute.tensors.append(named(file))
    attribute.sparse_tensors.add().values.CopyFrom(named("model.onnx"))
    return model


def of_training(file: str) -> Any:
    model = adding([], [numpy_helper.from_array(NUMBERS, "w")])
    model.training_info.add().algorithm.initializer.append(named(file))
    return model


def of_a_function_s_attribute(file: str) -> Any:
    model = of_a_function("model.onnx")
    attribute = model.functions[0].attribute_proto.add()
    attribute.name, attribute.type = "default", onnx.AttributeProto.TENSOR
    attribute.t.CopyFrom(named(file))
    return model


WAYS = {
    "weight": of_weight,
    "constant": of_constant,
    "branch": of_a_branch_s_weight,
    "constant in a branch": of_a_branch_s_constant,
    "function": of_a_function,
    "default of a function": of_a_function_s_attribute,
    "loop": nested("Loop"),
    "scan": nested("Scan"),
    "sparse weight": of_a_sparse_weight,
    "sparse constant": of_a_sparse_constant,
    "lists": of_lists,
    "training": of_training,
}
RUN = ("weight", "constant", "branch", "constant in a branch", "function")  # those that make sound models


def source(file: Path) -> ModelSource:
    return ModelSource("onnx", file)


@pytest.fixture
def nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*given: Any, **more: Any) -> None:
        raise AssertionError("the runtime was given a model that was to be refused")

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", [OUTSIDE, "/etc/hostname", "a/../../secret.bin", ".", ""])
def test_a_file_outside_is_refused_before_any_runtime_opens_it(
    tmp_path: Path, way: str, file: str, nothing_opens: None
) -> None:
    path = tmp_path / "inside" / "model.onnx"
    path.parent.mkdir()
    (tmp_path / "secret.bin").write_bytes(NUMBERS.tobytes())
    path.write_bytes(WAYS[way](file).SerializeToString())
    with pytest.raises(StrettoError, match="keeps weights in a file outside its folder"):
        read_onnx_header(path)
    with pytest.raises(BackendError, match=r"model\.onnx keeps weights in a file outside its folder"):
        load_model(source(path))
    with pytest.raises(BackendError, match=r"model\.onnx keeps weights in a file outside its folder"):
        OnnxLayer(path, "x", "w")


@pytest.mark.parametrize("way", WAYS)
def test_every_file_beside_is_known(tmp_path: Path, way: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(WAYS[way]("weights.bin").SerializeToString())
    assert set(read_onnx_header(path).external) - {"model.onnx"} == {"weights.bin"}


def test_addresses_and_parts_made_for_a_device_are_refused(tmp_path: Path, nothing_opens: None) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(of_weight("*/_ORT_MEM_ADDR_/*").SerializeToString())
    with pytest.raises(BackendError, match="at an address in memory"):
        load_model(source(path))
    context = helper.make_node("EPContext", ["x"], ["w"], domain="com.microsoft", ep_cache_context="/any/file")
    path.write_bytes(adding([context]).SerializeToString())
    with pytest.raises(BackendError, match="compiled for one device"):
        load_model(source(path))


def test_messages_in_messages_without_end_are_refused(tmp_path: Path, nothing_opens: None) -> None:
    from stretto.core.protobuf import field

    graph = b""
    for _ in range(200):  # node, attribute, graph
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(BackendError, match="is no ONNX model"):
        load_model(source(path))


@pytest.mark.parametrize("way", RUN)
def test_weights_beside_a_model_are_not_mapped(tmp_path: Path, way: str) -> None:
    """Whoever writes to a mapped file ends the process, or changes what it answers."""
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    path.write_bytes(WAYS[way]("weights.bin").SerializeToString())
    weights.write_bytes(NUMBERS.tobytes())
    model = load_model(source(path))
    weights.write_bytes(b"")
    maps = Path("/proc/self/maps").read_text() if sys.platform == "linux" else ""
    assert str(weights) not in maps
    np.testing.assert_array_equal(model.run({"x": np.zeros((2, 4), np.float32)})["y"], [NUMBERS, NUMBERS])
    model.unload()


def test_weights_in_folders_beside_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(of_weight("deep/er/weights.bin").SerializeToString())
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "weights.bin").write_bytes(NUMBERS.tobytes())
    assert load_model(source(path)).run({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[1, 2, 3, 4]]


def test_no_copy_of_weights_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    file = linear(tmp_path / "model.onnx", external="weights.bin")
    model = load_model(source(file))
    assert model.run({"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 3)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(BackendError, match="too short"):
        load_model(source(file))
    assert not list(room.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="a mapped file that is cut off raises SIGBUS")
def test_weights_that_are_cut_off_while_they_serve_end_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times. A million numbers, so that they are not all read at the load."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    size = 1 << 20
    numbers = np.arange(size, dtype=np.float32) % 7
    nodes = [
        helper.make_node("Add", ["x", "w"], ["sum"]),
        helper.make_node("ReduceMax", ["sum"], ["y"], axes=[1], keepdims=1),
    ]
    shapes = {"x": ("float32", ["batch", 1])}, {"y": ("float32", ["batch", 1])}
    file = save(tmp_path / "model.onnx", nodes, *shapes, {"w": numbers}, external="weights.bin")
    weights = tmp_path / "weights.bin"
    whole = weights.read_bytes()
    assert len(whole) >= 4 * size
    takes, gives = TensorSpec("x", "float32", (1,)), TensorSpec("y", "float32", (1,))
    served = of_models(big=ModelSource("onnx", file, inputs=(takes,), outputs=(gives,)))

    async def work() -> None:
        async with serving(served, ProcessExecutor) as engine:
            for number in range(100):
                with weights.open("r+b") as written:  # as `cp` does: the file stays, and is empty for a while
                    written.truncate(0)
                    ended = await asked(engine, np.full((1, 1), number, np.float32))
                    assert ended.answers is not None and ended.answers.tolist() == [[number + 6.0]], ended.problem
                    written.write(whole)
            assert engine.crew.restarts == 0

    within(120, work)


def test_a_model_is_known_by_its_weights_too(tmp_path: Path) -> None:
    alone = linear(tmp_path / "a" / "model.onnx")
    file = linear(tmp_path / "b" / "model.onnx", external="weights.bin")
    weights = tmp_path / "b" / "weights.bin"
    before = model_file_sha256(file)
    assert before != model_file_sha256(alone)
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert model_file_sha256(file) != before
    content[0] ^= 1
    weights.write_bytes(content)
    assert model_file_sha256(file) == before


LOAD = """
import sys
from pathlib import Path
from stretto.backends.load import load_model
from stretto.backends.source import ModelSource
load_model(ModelSource("onnx", Path(sys.argv[1])))
import time; time.sleep(1)
"""


def test_the_runtime_tells_nobody_that_it_is_used(tmp_path: Path) -> None:
    """Where its telemetry is on, it keeps a number of this machine and a queue for its host in the home folder."""
    file = linear(tmp_path / "model.onnx")
    home = tmp_path / "home"
    home.mkdir()
    names = ("HOME", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", LOAD, str(file)], env=environment, check=True, timeout=120)
    assert not [path for path in home.rglob("*") if path.is_file()]
