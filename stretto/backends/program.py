"""Exported programs of PyTorch (.pt2), taken apart before they are trusted.

`torch.export.load` runs whatever a file says: it unpickles sample inputs, constants and some weights, looks up
operators by walking attributes from `torch` (where `torch.os.system` can be reached), evaluates shape expressions and
guards as Python. So a file is read here as plain zip and JSON, refused where it holds anything but tensors and plain
operators, and written anew without samples, guards and notes; only that copy is loaded.
"""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from pathlib import Path
from typing import Any, NoReturn

from stretto.backends.model import BackendError

MAX_JSON_BYTES = 256 * 2**20
MAX_MEMBERS = 100_000
OPERATORS = re.compile(r"torch\.ops\.aten\.[A-Za-z_]\w*\.[A-Za-z_]\w*")
FILE_OPERATORS = {"save", "load", "from_file", "warn"}
ARITHMETIC = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|ge|gt|le|lt|and_|or_)"
    r"|math\.(ceil|floor|trunc|sqrt)|torch\.sym_(int|float|max|min|not|ite|sqrt|sum)"
)
# Shapes are written as sympy would be called: Mul(Integer(2), Symbol('s77', positive=True, integer=True)).
SYMBOL = re.compile(r"'[a-z]{1,2}\d+'")
EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=.]*")
NAMES = re.compile(
    r"[a-z]{1,2}\d+|\d+(\.\d*)?(e-?\d+)?|Symbol|Integer|Rational|Float|Mul|Add|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv"
    r"|CeilDiv|CeilToInt|FloorToInt|TruncToInt|RoundToInt|IntTrueDiv|FloatTrueDiv|PowByNatural|ToFloat|Identity|Equality"
    r"|Unequality|GreaterThan|LessThan|StrictGreaterThan|StrictLessThan|Eq|Ne|Ge|Gt|Le|Lt|And|Or|Not|true|false|True|False"
    r"|oo|int_oo|positive|nonnegative|integer|real|precision"
)
# What a node may be given. Operators, sub-graphs and objects are left out on purpose.
ARGUMENTS = {
    *("as_none", "as_tensor", "as_tensors", "as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools"),
    *("as_string", "as_strings", "as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_floats", "as_sym_bool"),
    *("as_sym_bools", "as_scalar_type", "as_memory_format", "as_layout", "as_device", "as_optional_tensor"),
    *("as_optional_tensors", "as_expr", "as_name", "as_int_lists", "as_nested_tensors", "as_complex"),
}
# The words that operators take: modes of padding, rounding, interpolation, reduction. No file name is among them.
WORDS = {
    *("", "none", "tanh", "same", "valid", "floor", "trunc", "mean", "sum", "ij", "xy"),
    *("constant", "reflect", "replicate", "circular", "nearest", "linear", "bilinear", "bicubic"),
}
CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
# PyTorch's own reading was not made for two threads at once. Held from the file to the module: what is asked for first
# then begins to run while others are read.
READING = threading.Lock()


def read_program(file: Path) -> Any:
    """A `torch.export.ExportedProgram` from a file that holds nothing but tensors and plain operators."""
    import torch

    rewritten = rewritten_archive(file, _no_samples())
    try:
        return torch.export.load(rewritten)
    except Exception as error:
        raise BackendError(
            f"{file.name} cannot be loaded by PyTorch {torch.__version__} ({type(error).__name__}); "
            f"export it again with this version, or serve it as ONNX"
        ) from None


def module_on(program: Any, device: str, channels_last: bool = False) -> Any:
    """The program as a module that makes its own tensors on this device, too; its weights are moved with the module.
    On a GPU grouped convolutions see images as they were sent, unless `channels_last` asks for the other layout.

    PyTorch's `move_to_device_pass` would also compute every shape of the graph anew, which is for tracing it again.
    """
    import torch

    if device != "cpu":
        for name, constant in program.constants.items():
            if isinstance(constant, torch.Tensor):
                program.constants[name] = constant.to(device)  # a plain attribute of the module, which moves no such
    module = program.module(check_guards=False)  # shapes are checked elsewhere; guards would be compiled from text
    if device == "cpu":
        return module
    for graph_module in [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]:
        for node in graph_module.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": torch.device(device)}
            if node.op == "call_function" and node.target is torch.ops.aten.to.device:
                node.args = (node.args[0], torch.device(device), *node.args[2:])
        if not channels_last:
            keep_layout(graph_module)
        graph_module.recompile()
    return module.to(device)


def take_apart(module: Any) -> None:
    """A program that is not needed any more gives its tensors back at once. It is a cycle of references, which the
    collector would end some time later, or now, for 0.1 s in which no batch runs (beside four other programs).
    """
    import torch

    for part in list(module.modules()):
        if isinstance(part, torch.fx.GraphModule):
            vars(part).clear()


def keep_layout(graph_module: Any) -> None:
    """Before every grouped convolution, images lie channel by channel again where the network had turned them round, as
    ConvNeXt does for its norms. Pixel by pixel, cuDNN would take those of single channels, and compile a kernel for
    every batch size: 7 to 10 s for such a network. PyTorch's own kernel for the other layout is there, and a tenth
    slower.
    """
    import torch

    groups_at = {torch.ops.aten.conv2d.default: 6, torch.ops.aten.convolution.default: 8}
    graph = graph_module.graph
    for node in list(graph.nodes):
        place = groups_at.get(node.target) if node.op == "call_function" else None
        if place is not None and len(node.args) > place and node.args[place] != 1:
            with graph.inserting_before(node):
                entering = graph.call_function(torch.ops.aten.contiguous.default, (node.args[0],))
            node.args = (entering, *node.args[1:])


def _no_samples() -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(((), {}), buffer)
    return buffer.getvalue()


def rewritten_archive(file: Path, samples: bytes) -> io.BytesIO:
    """The archive again, without what could run code; BackendError where it would need that."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(file, archive)
            program = _json(file, archive, members, "models/model.json")
            constants = _json(file, archive, members, "data/constants/model_constants_config.json")
            weights = _json(file, archive, members, "data/weights/model_weights_config.json")
            _check_program(file, program)
            for payloads in (constants, weights):
                _check_payloads(file, payloads)
            written = io.BytesIO()
            with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as copy:
                for name, member in members.items():
                    if re.fullmatch(r"data/(weights/weight|constants/tensor)_\d+", name):
                        copy.writestr(f"model/{name}", archive.read(member))
                for name, value in (
                    ("models/model.json", program),
                    ("data/constants/model_constants_config.json", constants),
                    ("data/weights/model_weights_config.json", weights),
                ):
                    copy.writestr(f"model/{name}", json.dumps(value))
                copy.writestr("model/data/sample_inputs/model.pt", samples)
                for name in ("archive_format", "archive_version", ".data/version", "byteorder"):
                    if name in members:
                        copy.writestr(f"model/{name}", archive.read(members[name])[:64])
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError):
        raise BackendError(
            f"{file.name} is no exported program, or is cut off or damaged; copy it again, or export it with "
            f"torch.export.save"
        ) from None
    written.seek(0)
    return written


def _members(file: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """By name, without the archive's own folder. What is stored compressed could unpack to any size: refused."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.partition("/")[2]
        if member.compress_type != zipfile.ZIP_STORED or name in members or len(members) >= MAX_MEMBERS:
            _refuse(file, "is packed unlike what torch.export.save writes")
        members[name] = member
    if "archive_format" not in members or "models/model.json" not in members:
        _refuse(file, "is no exported program of PyTorch 2.9 or newer")
    return members


def _json(file: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Any:
    if name not in members or members[name].file_size > MAX_JSON_BYTES:
        _refuse(file, "lacks its description of the graph or of the weights")
    try:
        value = json.loads(archive.read(members[name]))
    except (ValueError, RecursionError):
        _refuse(file, "has a damaged description")
    return value if isinstance(value, dict) else _refuse(file, "has a damaged description")


def _check_payloads(file: Path, payloads: Any) -> None:
    config = payloads.get("config")
    for payload in config.values() if isinstance(config, dict) else ():
        name = payload.get("path_name") if isinstance(payload, dict) else None
        if not isinstance(name, str) or payload.get("use_pickle") is not False:
            _refuse(file, "holds pickled objects, which could run any code")
        if not re.fullmatch(r"(weight|tensor)_\d+", name):
            _refuse(file, f"holds an object of a kind that is no tensor ({name[:40]})")


def _check_program(file: Path, program: Any) -> None:
    """Checks the program and takes out, in place, what is evaluated as code but not needed to run it."""
    program["guards_code"] = []
    try:
        module = program["graph_module"]
        if module["graph"].get("is_single_tensor_return") is None or not isinstance(module["graph"]["nodes"], list):
            _refuse(file, "has a damaged graph")
        for node in module["graph"]["nodes"]:
            node["metadata"] = {}
            _check_operator(file, node["target"])
        module["metadata"] = {}
        module["treespec_namedtuple_fields"] = {}
        for call in module["module_call_graph"]:
            for spec in ("in_spec", "out_spec"):
                if call.get("signature"):
                    _check_container(file, json.loads(call["signature"][spec]))
    except BackendError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):
        _refuse(file, "has a damaged graph")
    _walk(file, program)


def _check_operator(file: Path, target: Any) -> None:
    if not isinstance(target, str):
        _refuse(file, "has a damaged graph")
    if OPERATORS.fullmatch(target) and target.split(".")[3] not in FILE_OPERATORS:
        return
    if not ARITHMETIC.fullmatch(target):
        _refuse(file, f"calls {target[:60]}, which is no plain operator")


def _check_container(file: Path, spec: Any) -> None:
    """A treespec: how arguments are nested. Other types would be imported by name."""
    nodes = spec[1:] if isinstance(spec, list) else [spec]
    while nodes:
        node = nodes.pop()
        context = node.get("context")
        known = context is None or (isinstance(context, str) and re.fullmatch(r"null|\[[\w\", ]*\]", context))
        if node.get("type") not in CONTAINERS or not known:
            _refuse(file, f"takes or gives a {str(node.get('type'))[:40]}; give it tensors, or tuples of them")
        nodes.extend(node.get("children_spec", ()))


def _walk(file: Path, value: Any) -> None:
    """Every argument and every shape expression, however deep."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            for key, inner in item.items():
                if key.startswith("as_") and key not in ARGUMENTS:
                    _refuse(file, f"gives an operator something else than numbers and tensors ({key[3:40]})")
                if key == "expr_str" and not _is_arithmetic(inner):
                    _refuse(file, "has a shape that is no plain arithmetic")
                if key in ("as_string", "as_strings"):
                    words = [inner] if isinstance(inner, str) else inner
                    if not isinstance(words, list) or not all(word in WORDS for word in words):
                        _refuse(file, "gives an operator a text that is none of its modes")
                waiting.append(inner)


def _is_arithmetic(expression: Any) -> bool:
    if not isinstance(expression, str):
        return False
    expression = SYMBOL.sub("s0", expression)
    words = re.findall(r"[\w.]+", expression)
    return EXPRESSION.fullmatch(expression) is not None and all(NAMES.fullmatch(word) for word in words)


def _refuse(file: Path, why: str) -> NoReturn:
    raise BackendError(f"{file.name} {why}, so it is not loaded; export the model as ONNX, or as safetensors plus code")
