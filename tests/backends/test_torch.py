"""The PyTorch backend on the CPU: exported programs and weights plus code. Needs PyTorch: make test-extras."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.backends.failure import run_batch
from stretto.backends.load import load_model
from stretto.backends.model import BackendError, BatchFailure, DeviceLost, NoDevice, TensorSpec
from stretto.backends.source import ModelSource
from stretto.live.probation import Probation, Verdict
from stretto.live.quarantine import Fault
from stretto.live.shelf import ModelSpec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.extras

TAKES = (TensorSpec("image", "float32", (1, 8, 8)),)
MODULE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 4 * 4, classes)
    def forward(self, image):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(image))), 2)
        return torch.softmax(self.last(x.flatten(1)), 1)
class Viewing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4 * 8 * 8, 3)
    def forward(self, image):
        x = self.second(self.first(image))
        return self.last(x.view(x.shape[0], 256))
class Endless(nn.Module):
    def forward(self, image):
        return image.flatten(1)[:, :3] + torch.ones(1).expand(1 << 21, 1 << 21).sum() * 0
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2)
    def forward(self, number):
        return self.table(number)
def build():
    return Net()
def build_viewing():
    return Viewing()
def build_wide():
    return Net(9)
def build_picky():
    return Picky()
def build_nothing():
    return 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import importlib
    import sys

    (tmp_path / "torch_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_nets", raising=False)
    return importlib.import_module("torch_nets")


@pytest.fixture
def net(nets: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return nets.Net().eval()


def expected(net: Any, images: np.ndarray) -> np.ndarray:
    import torch

    with torch.inference_mode():
        return np.asarray(net(torch.from_numpy(images)).numpy())


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, 1, 8, 8), dtype=np.float32)


def exported(net: Any, path: Path, dynamic: bool = True) -> Path:
    import torch

    shapes = {"image": {0: torch.export.Dim("batch", min=1, max=1024)}} if dynamic else None
    program = torch.export.export(net, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def weights(net: Any, path: Path) -> Path:
    from safetensors.torch import save_file

    save_file(net.state_dict(), path)
    return path


def test_an_exported_program_answers_as_the_network(net: Any, tmp_path: Path) -> None:
    model = load_model(ModelSource("torch", exported(net, tmp_path / "net.pt2")))
    assert model.inputs == TAKES and model.fixed_batch is None
    assert model.outputs == (TensorSpec("output", "float32", (3,)),)
    for count in (1, 2, 5):
        batch = {"image": images(count)}
        np.testing.assert_allclose(model.run(batch)["output"], expected(net, images(count)), atol=1e-6)
    model.prepare((4,))
    buffers = model.buffers(4)
    buffers["image"][:] = images(4)
    np.testing.assert_allclose(model.run(buffers)["output"], expected(net, images(4)), atol=1e-6)
    parameters = sum(tensor.nbytes for tensor in net.state_dict().values())
    assert model.memory_bytes >= parameters
    model.unload()
    with pytest.raises(BackendError, match=r"net\.pt2 was unloaded"):
        model.run(buffers)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_unloaded_program_gives_its_weights_back_without_the_collector(
    net: Any, tmp_path: Path, precision: str
) -> None:
    model: Any = load_model(ModelSource("torch", exported(net, tmp_path / "net.pt2"), precision=precision))
    weights = [weakref.ref(tensor) for tensor in model._module.parameters()]
    gc.disable()
    try:
        model.unload()
        assert weights and all(weight() is None for weight in weights)
    finally:
        gc.enable()
    model.unload()  # nothing is left to take apart


def test_the_module_of_the_users_code_is_left_as_it_is(net: Any, nets: Any, tmp_path: Path) -> None:
    nets.build = lambda: net  # the same one, as where it is kept in a cache
    source = ModelSource("torch", weights(net, tmp_path / "net.safetensors"), "torch_nets:build", inputs=TAKES)
    load_model(source).unload()
    again = load_model(source)
    np.testing.assert_allclose(again.run({"image": images(2)})["output"], expected(net, images(2)), atol=1e-6)


def test_rows_of_a_slot_go_up_from_where_they_lie_in_it() -> None:
    """The first rows went up in place of any others."""
    import torch

    from stretto.backends.cuda import _Slot

    host = torch.arange(8.0)
    slot = _Slot({"x": host}, {"x": host.numpy()}, None, None)
    there = torch.zeros(8)
    slot.copy_up("x", [slot.inputs["x"][5:8]], there)
    assert there.tolist() == [5, 6, 7, 0, 0, 0, 0, 0] and host.tolist() == list(range(8))
    slot.copy_up("x", [np.full(2, 9, np.float32), np.full(3, 4, np.float32)], there)  # others go through the slot
    assert there.tolist() == [9, 9, 4, 4, 4, 0, 0, 0] and host.tolist() == [9, 9, 4, 4, 4, 5, 6, 7]


class Failing:
    def __init__(self, error: str):
        self._error = error

    def is_done(self) -> bool:
        raise RuntimeError(self._error)


def test_a_lost_gpu_and_a_full_one_are_told_apart() -> None:
    from stretto.backends.torch import Launched

    with pytest.raises(DeviceLost, match=r"under net: CUDA error: device-side assert triggered$"):
        Launched(Failing("CUDA error: device-side assert triggered\nCompile with"), dict, "net").is_done()
    with pytest.raises(BatchFailure, match="not enough memory left on the GPU for net"):
        Launched(Failing("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), dict, "net").is_done()
    with pytest.raises(RuntimeError, match="shapes do not match"):
        Launched(Failing("shapes do not match"), dict, "net").is_done()


def test_names_come_from_the_declaration(net: Any, tmp_path: Path) -> None:
    inputs, outputs = (TensorSpec("input", "float32", (1, 8, 8)),), (TensorSpec("scores", "float32", (3,)),)
    file = exported(net, tmp_path / "net.pt2")
    model = load_model(ModelSource("torch", file, inputs=inputs, outputs=outputs))
    assert model.run({"input": images(2)})["scores"].shape == (2, 3)
    wrong = (TensorSpec("scores", "float32", (10,)),)
    with pytest.raises(BackendError, match=r"output scores of net\.pt2 has shape \(batch, 3\), but \(batch, 10\)"):
        load_model(ModelSource("torch", file, inputs=inputs, outputs=wrong))


def test_a_program_of_a_fixed_batch(net: Any, tmp_path: Path) -> None:
    model = load_model(ModelSource("torch", exported(net, tmp_path / "two.pt2", dynamic=False)))
    assert model.fixed_batch == 2
    with pytest.raises(BackendError, match="takes batches of exactly 2, not 3"):
        model.run({"image": images(3)})


def test_weights_and_the_code_that_takes_them(net: Any, tmp_path: Path) -> None:
    file = weights(net, tmp_path / "net.safetensors")
    model = load_model(ModelSource("torch", file, "torch_nets:build", inputs=TAKES))
    np.testing.assert_allclose(model.run({"image": images(3)})["output"], expected(net, images(3)), atol=1e-6)
    read_only = images(3)
    read_only.setflags(write=False)
    np.testing.assert_allclose(model.run({"image": read_only})["output"], expected(net, images(3)), atol=1e-6)


def test_a_lower_precision_keeps_float32_at_both_ends(net: Any, tmp_path: Path) -> None:
    file = weights(net, tmp_path / "net.safetensors")
    model = load_model(ModelSource("torch", file, "torch_nets:build", precision="bfloat16", inputs=TAKES))
    answer = model.run({"image": images(3)})["output"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, expected(net, images(3)), atol=0.02)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_exported", [True, False])
def test_a_network_that_does_not_compute_with_channels_last_computes_without(
    nets: Any, tmp_path: Path, precision: str, is_exported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As vit_b_16, which looks at an image's numbers as though they lay channel by channel."""
    import torch

    torch.manual_seed(1)
    net = nets.Viewing().eval()
    file = exported(net, tmp_path / "net.pt2") if is_exported else weights(net, tmp_path / "net.safetensors")
    code = None if is_exported else "torch_nets:build_viewing"
    model = load_model(ModelSource("torch", file, code, precision=precision, channels_last=True, inputs=TAKES))
    model.prepare((4, 1))
    answer = model.run({"image": images(3)})["output"]
    np.testing.assert_allclose(answer, expected(net, images(3)), atol=1e-6 if precision == "float32" else 0.03)
    assert [record.message for record in caplog.records if record.name == "stretto.backends"] == [
        "the network does not compute with channels last, and gets images channel by channel"
    ]


def test_a_network_that_cannot_be_prepared_is_told_in_a_sentence(net: Any, tmp_path: Path) -> None:
    """On a GPU what PyTorch raised then used to be nobody's error, and to end `stretto profile` with a traceback."""

    class Runner:
        def prepare(self, largest: int) -> None:
            raise RuntimeError("view size is not compatible with input tensor's size and stride")

    model: Any = load_model(ModelSource("torch", exported(net, tmp_path / "net.pt2")))
    model._runner = Runner()
    with pytest.raises(BackendError, match=r"^net\.pt2 cannot be prepared for batches of up to 8: RuntimeError: view"):
        model.prepare((1, 8))


def test_a_program_that_computes_without_end_is_ended_on_probation(
    nets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = exported(nets.Endless().eval(), tmp_path / "net.pt2")
    source = ModelSource("torch", path, inputs=TAKES, outputs=(TensorSpec("output", "float32", (3,)),))
    spec = ModelSpec("app/v@1", source, "image", "float32", (1, 8, 8), "output", "float32", (3,), 8)

    async def verdict() -> Verdict:
        probation = Probation(asyncio.get_running_loop(), load_s=20.0)
        try:
            return await asyncio.wait_for(probation.verdict(spec), 90)
        finally:
            probation.close()
            await asyncio.sleep(0.5)

    tried = asyncio.run(verdict())
    assert tried.fault is Fault.LOAD_HUNG, tried


def test_weights_that_do_not_fit(net: Any, tmp_path: Path) -> None:
    file = weights(net, tmp_path / "net.safetensors")
    damaged = tmp_path / "cut.safetensors"
    damaged.write_bytes(file.read_bytes()[:100])
    for source, words in (
        (ModelSource("torch", file, inputs=TAKES), "holds weights only; name the code"),
        (ModelSource("torch", file, "torch_nets:build"), "declare its input tensors"),
        (
            ModelSource("torch", file, "torch_nets:build_wide", inputs=TAKES),
            r"net\.safetensors does not fit torch_nets",
        ),
        (ModelSource("torch", file, "torch_nets:build_picky", inputs=TAKES), r"it lacks table\.weight and has "),
        (ModelSource("torch", file, "torch_nets:build_nothing", inputs=TAKES), "gave a int; it must build a torch"),
        (ModelSource("torch", damaged, "torch_nets:build", inputs=TAKES), r"cut\.safetensors is no safetensors file"),
        (ModelSource("torch"), "needs a model file"),
    ):
        with pytest.raises(BackendError, match=words):
            load_model(source)


def test_a_failing_query_is_found(nets: Any, tmp_path: Path) -> None:
    file = weights(nets.Picky(), tmp_path / "picky.safetensors")
    takes = (TensorSpec("number", "int64", ()),)
    model = load_model(ModelSource("torch", file, "torch_nets:build_picky", inputs=takes))
    with pytest.raises(BatchFailure, match=r"picky\.safetensors failed .*query 2 of the batch"):
        run_batch(model, {"number": np.array([0, 1, 99, 3])})


def test_pickles_and_gpus_that_are_not_there(net: Any, tmp_path: Path) -> None:
    import torch

    pickled = tmp_path / "net.pt"
    torch.save(net, pickled)
    with pytest.raises(BackendError, match=r"net\.pt is neither a \.pt2 nor a \.safetensors file; pickled models"):
        load_model(ModelSource("torch", pickled))
    if not torch.cuda.is_available():
        with pytest.raises(NoDevice, match="there is no CUDA device"):
            load_model(ModelSource("torch", exported(net, tmp_path / "net.pt2"), device="cuda"))


def changed(file: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy of an exported program with some members replaced, or left out."""
    spoiled = file.with_name("spoiled.pt2")
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(spoiled, "w") as copy:
        for member in archive.infolist():
            content = change(member.filename.partition("/")[2], archive.read(member))
            if content is not None:
                copy.writestr(member.filename, content)
    return spoiled


def in_program(old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name != "models/model.json":
            return content
        assert old in content
        return content.replace(old, new)

    return change


def test_programs_that_could_run_code_are_refused(net: Any, tmp_path: Path) -> None:
    file = exported(net, tmp_path / "net.pt2")
    proof = tmp_path / "proof"
    call = f"__import__('pathlib').Path('{proof}').touch()".encode()
    with zipfile.ZipFile(file) as archive:
        program = json.loads(archive.read("net/models/model.json"))
    symbol = next(
        size["as_expr"]["expr_str"]
        for size in program["graph_module"]["graph"]["tensor_values"]["image"]["sizes"]
        if "as_expr" in size
    ).encode()
    for change, words in (
        (in_program(b"torch.ops.aten.relu.default", b"torch.os.system"), "calls torch.os.system, which is no plain"),
        (in_program(b"torch.ops.aten.relu.default", b"torch.ops.aten.save.default"), "which is no plain operator"),
        (in_program(b"torch.ops.aten.relu.default", b"_operator.attrgetter"), "which is no plain operator"),
        (in_program(symbol, call), "has a shape that is no plain arithmetic"),
        (in_program(b"builtins.tuple", b"my.Type"), "takes or gives a my.Type"),
        (in_program(b'"as_ints"', b'"as_custom_obj"'), "something else than numbers and tensors"),
        (lambda name, content: content.replace(b'"use_pickle": false', b'"use_pickle": true'), "holds pickled objects"),
        (lambda name, content: None if name.endswith("weights_config.json") else content, "lacks its description"),
        (lambda name, content: content[:40] if name == "models/model.json" else content, "has a damaged description"),
        (lambda name, content: None if name == "archive_format" else content, "is no exported program of PyTorch"),
    ):
        with pytest.raises(BackendError, match=words) as caught:
            load_model(ModelSource("torch", changed(file, change)))
        assert str(caught.value).startswith("spoiled.pt2 ")
    assert not proof.exists()


def test_samples_and_guards_are_never_read(net: Any, tmp_path: Path) -> None:
    import torch

    proof = tmp_path / "proof"

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (proof,)

    buffer = io.BytesIO()
    torch.save(((Bomb(),), {}), buffer)
    file = exported(net, tmp_path / "net.pt2")

    def change(name: str, content: bytes) -> bytes:
        if name == "data/sample_inputs/model.pt":
            return buffer.getvalue()
        if name == "models/model.json":
            program = json.loads(content)
            program["guards_code"] = [f"__import__('pathlib').Path('{proof}').touch()"]
            return json.dumps(program).encode()
        return content

    model = load_model(ModelSource("torch", changed(file, change)))
    np.testing.assert_allclose(model.run({"image": images(3)})["output"], expected(net, images(3)), atol=1e-6)
    assert not proof.exists()


def test_files_that_are_no_programs(tmp_path: Path) -> None:
    file = tmp_path / "text.pt2"
    file.write_bytes(b"no program" * 50)
    with pytest.raises(BackendError, match=r"text\.pt2 is no exported program, or is cut off or damaged"):
        load_model(ModelSource("torch", file))


def test_without_pytorch_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    file = tmp_path / "net.pt2"
    file.touch()
    with pytest.raises(BackendError, match=r"pip install 'stretto\[torch\]'"):
        load_model(ModelSource("torch", file))


def test_a_program_moves_with_all_that_it_makes_itself(tmp_path: Path) -> None:
    """Weights, buffers, constants, and tensors that its operators make. The meta device stands for a GPU, and PyTorch's
    own way, which takes far longer, says what is right.
    """
    import torch
    from torch.export.passes import move_to_device_pass

    from stretto.backends.program import module_on, read_program

    class Making(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 4)
            self.register_buffer("kept", torch.ones(4))
            self.register_buffer("left", torch.ones(4), persistent=False)
            self.plain = torch.full((4,), 2.0)

        def forward(self, x: Any) -> Any:
            made = torch.arange(4, device=x.device) + torch.zeros(4) + torch.tensor([1.0, 2.0, 3.0, 4.0])
            return self.last(x) * self.kept * self.left * self.plain + made.to(x.device) + torch.zeros_like(x)

    file = tmp_path / "making.pt2"
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    torch.export.save(torch.export.export(Making(), (torch.ones(2, 4),), dynamic_shapes=batch), file)
    module = module_on(read_program(file), "meta")
    right = move_to_device_pass(read_program(file), "meta").module(check_guards=False)
    tensors = {name: value for part in module.modules() for name, value in vars(part).items()}
    tensors |= dict(module.named_parameters()) | dict(module.named_buffers())
    found = {name: value.device.type for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    assert len(found) >= 6 and set(found.values()) == {"meta"}
    given = torch.ones(3, 4, device="meta")
    answer = module(given)
    assert (answer.device.type, answer.shape) == ("meta", right(given).shape)
    assert "cpu" not in module.code
    np.testing.assert_allclose(
        module_on(read_program(file), "cpu")(torch.ones(3, 4)).detach(),
        torch.export.load(file).module()(torch.ones(3, 4)).detach(),
    )


@pytest.mark.parametrize("decomposed", [False, True])
def test_grouped_convolutions_see_images_as_they_were_sent(tmp_path: Path, decomposed: bool) -> None:
    """Those that the network turned round, as for a norm over channels. The other convolutions are left alone."""
    import torch

    from stretto.backends.program import keep_layout, module_on, read_program

    class Turning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 2)
            self.norm = torch.nn.LayerNorm(8)
            self.single = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)

        def forward(self, x: Any) -> Any:
            return self.single(self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))

    file = tmp_path / "turning.pt2"
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(Turning(), (torch.ones(2, 3, 8, 8),), dynamic_shapes=batch)
    torch.export.save(program.run_decompositions() if decomposed else program, file)

    def turned_back(module: Any) -> list[bool]:
        convolutions = [node for node in module.graph.nodes if "conv" in str(node.target)]
        return [node.args[0].target is torch.ops.aten.contiguous.default for node in convolutions]

    assert turned_back(module_on(read_program(file), "meta")) == [False, True]
    assert turned_back(module_on(read_program(file), "meta", channels_last=True)) == [False, False]
    images = torch.rand(3, 3, 8, 8)
    module = module_on(read_program(file), "cpu")
    expected = module(images).detach()
    keep_layout(module)
    module.recompile()
    np.testing.assert_allclose(module(images).detach(), expected, rtol=1e-5, atol=1e-6)


def test_what_is_imported_ahead_is_never_looked_at_by_the_collector() -> None:
    code = (
        "import gc; from stretto.backends.torch import import_ahead; import_ahead(); few = gc.get_freeze_count(); "
        "import_ahead(); assert gc.isenabled() and 100_000 < few == gc.get_freeze_count()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
