"""What may import what: no clock, socket or chance in the pure folders, and the arrows of the house point down only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "stretto"
PURE = ("core", "dispatch", "planners", "planning")
FORBIDDEN = {
    *("time", "asyncio", "socket", "random", "threading", "datetime", "secrets", "multiprocessing", "concurrent"),
    *("http", "grpc", "uvicorn", "aiohttp", "ray", "urllib", "requests", "subprocess", "select", "selectors", "uuid"),
}
# What each folder may import of the package, itself always included. Folders not named here may import everything.
ARROWS = {
    "core": set(),
    "dispatch": {"core"},
    "planners": {"core"},
    "planning": {"core", "planners"},
    "sim": {"core", "dispatch", "planners", "planning"},
    "twin": {"core", "planners", "planning", "sim"},
    "training": {"core", "planners", "planning", "sim"},
    "live": {"core", "dispatch", "planners", "planning", "backends", "config", "evidence", "repository"},
    "config": {"core"},
    "repository": {"core", "config"},
    "backends": {"core", "config", "repository"},
    "evidence": {"core", "backends", "config", "repository"},
    "profiling": {"core", "backends", "config", "evidence", "repository"},
    # sim and twin: the ports that planners are given, and which of them a planner takes
    "api": {"core", "config", "dispatch", "planners", "repository", "live", "sim", "twin"},
    "client": {"core"},
    "report": {"client", "core", "sim", "twin", "profiling", "repository"},
}


def sources(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that a file imports, also inside functions; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    """`numpy.random.default_rng` of an expression that is a chain of names, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def uses_of_chance(tree: ast.AST) -> Iterator[str]:
    """Calls of numpy's randomness that do not name their seed, and uses of its hidden global state."""
    names = {"np", "numpy"}
    bare: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.asname or alias.name for alias in node.names if alias.name.startswith("numpy"))
        elif isinstance(node, ast.ImportFrom) and node.module == "numpy.random":
            bare.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "numpy":
            names.update(f"{alias.asname or alias.name}" for alias in node.names if alias.name == "random")
    seeded = {"default_rng", "SeedSequence", "Generator", "PCG64", "Philox"}
    as_types = {id(part) for node in ast.walk(tree) for part in annotations_of(node)}
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        name = dotted(node)
        root, _, rest = name.partition(".")
        is_numpy = (root in names and "random" in name.split(".")) or (root in bare and not rest)
        last = name.rsplit(".", 1)[-1]
        if not is_numpy or last == "random" or id(node) in as_types:
            continue
        call = calls.get(id(node))
        if last not in seeded or (call is not None and not call.args and not call.keywords):
            yield f"line {getattr(node, 'lineno', '?')}: {name}"


def annotations_of(node: ast.AST) -> Iterator[ast.AST]:
    found: list[ast.AST | None] = []
    if isinstance(node, ast.arg | ast.AnnAssign):
        found.append(node.annotation)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found.append(node.returns)
    for annotation in found:
        if annotation is not None:
            yield from ast.walk(annotation)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path.relative_to(PACKAGE)))


@pytest.mark.parametrize("folder", PURE)
def test_no_clock_no_socket_no_thread(folder: str) -> None:
    files = sources(folder)
    assert files
    for path in files:
        taken = {name.split(".")[0] for name in imported(parsed(path))} & FORBIDDEN
        if folder == "planning":  # its session has a lock, because two threads may ask; it starts none
            taken -= {"threading"}
        assert not taken, f"{folder}/{path.name} imports {', '.join(sorted(taken))}"


@pytest.mark.parametrize("folder", PURE)
def test_no_chance_of_their_own(folder: str) -> None:
    """The dispatcher and the nouns use no numpy.random at all; planners only with a seed that they are given."""
    for path in sources(folder):
        tree = parsed(path)
        assert not list(uses_of_chance(tree)), f"{folder}/{path.name}"
        if folder != "planners":
            assert not any(name.startswith("numpy.random") for name in imported(tree)), f"{folder}/{path.name}"
            chains = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not chains & {"np.random", "numpy.random"}, f"{folder}/{path.name}"


@pytest.mark.parametrize("folder", ARROWS)
def test_arrows_point_down_only(folder: str) -> None:
    for path in sources(folder):
        for name in imported(parsed(path)):
            parts = name.split(".")
            if parts[0] == "stretto" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
                allowed = ARROWS[folder] | {folder}
                assert parts[1] in allowed, f"{folder}/{path.relative_to(PACKAGE / folder)} imports {name}"


def test_sim_and_live_do_not_know_each_other() -> None:
    for folder, other in (("sim", "live"), ("live", "sim")):
        for path in sources(folder):
            assert not any(name.startswith(f"stretto.{other}") for name in imported(parsed(path))), path.name


def test_no_file_imports_itself_through_others() -> None:
    """Nor for types alone: whoever needs a part of another file takes a Protocol of that part, or a lower file."""
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in names.values()}
    graph: dict[str, set[str]] = {}
    for path, name in names.items():
        taken = set(imported(parsed(path))) & modules
        packages = {each for each in taken if any(other.startswith(f"{each}.") for other in taken)}  # on the way there
        graph[name.removesuffix(".__init__")] = taken - packages
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}")


READS_MEMORY = ("dispatch", "sim/simulator.py", "sim/loop.py", "sim/many.py")  # itself, and loops compiled with it


def test_nobody_else_reads_the_dispatchers_memory() -> None:
    """Its arrays move when a plan or the fleet changes; others read what `Dispatcher` shows."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(READS_MEMORY):
            tree = parsed(path)
            reads = [dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            assert not any(name.endswith("dispatcher.memory") for name in reads), f"{place} reads dispatcher.memory"
            assert not any(name.endswith("layout.Memory") for name in imported(tree)), f"{place} lays memory out"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy as np\nnp.random.rand(3)", True),
        ("import numpy as np\nrng = np.random.default_rng()", True),
        ("from numpy.random import default_rng\ndefault_rng()", True),
        ("import numpy as np\nnp.random.seed(1)", True),
        ("import numpy as np\nrng = np.random.default_rng(seed)", False),
        ("from numpy.random import default_rng\ndefault_rng(seed=3)", False),
        ("import numpy as np\ndef f(rng: np.random.Generator) -> np.random.Generator: return rng", False),
    ],
)
def test_the_test_itself_sees_chance(source: str, found: bool) -> None:
    assert bool(list(uses_of_chance(ast.parse(source)))) == found


def test_planning_asks_no_planner_for_attributes_that_nobody_declared() -> None:
    """What a planner can do is a Protocol of planners/ports.py; what it is given comes when it is made."""
    for path in sources("planning"):
        for node in ast.walk(parsed(path)):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert name not in {"getattr", "hasattr", "setattr"}, f"planning/{path.name}, line {node.lineno}"
