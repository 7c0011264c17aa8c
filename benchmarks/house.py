"""The size and the shape of the source: how many lines and modules, who imports whom, and names that occur twice.

Every figure is read from the syntax trees of the working tree. Two are not measured here: what fresh eyes guess from
a path, and how long `make test` takes.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from benchmarks.harness import Benchmark

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "stretto"
GENERATED = "_pb2.py"
MOST_PARAMETERS, MOST_FIELDS = 9, 20


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith(GENERATED))


def lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(folder))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that a file imports, also inside functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class Source:
    """The package as it stands, each module parsed once."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.trees = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sources(package)}
        self.packages = {name_of(path) for path in package.rglob("__init__.py")}
        self.imports = {
            name: {other for other in imported(tree) if other in self.trees and other != name}
            for name, tree in self.trees.items()
        }
        self.modules = [
            name for name, tree in self.trees.items() if name not in self.packages or len(tree.body) > 1
        ]  # an empty __init__.py is no module

    def of_one_importer(self) -> list[str]:
        """Returns modules that exactly one other module imports, which might as well hold them."""
        importers = Counter(other for others in self.imports.values() for other in others)
        return [name for name in self.modules if importers[name] == 1 and name not in self.packages]

    def fullest_folder(self) -> tuple[int, str]:
        inside = Counter(name.rpartition(".")[0] for name in self.modules if name not in self.packages)
        folder, count = max(inside.items(), key=lambda item: item[1])
        return count, folder

    def file_circles(self) -> int:
        return _circles(self.imports)

    def folder_circles(self) -> list[tuple[str, str]]:
        """Returns pairs of neighbouring folders that import each other, at every depth of the tree."""
        arrows: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
        for name, others in self.imports.items():
            for other in others:
                mine, its = name.split("."), other.split(".")
                depth = next((n for n, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), None)
                if depth is not None and mine[:-1] != its[:-1]:
                    arrows[tuple(mine[:depth])].add((mine[depth], its[depth]))
        return sorted(
            {
                (".".join((*above, first)), ".".join((*above, second)))
                for above, pairs in arrows.items()
                for first, second in pairs
                if first < second and (second, first) in pairs
            }
        )

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    yield name, node

    def names_twice(self) -> list[str]:
        """Returns names of several classes, unless all but one of these have the same base or are protocols."""
        by_name: dict[str, list[ast.ClassDef]] = defaultdict(list)
        for _, node in self.classes():
            by_name[node.name].append(node)
        return sorted(name for name, nodes in by_name.items() if len(nodes) > 1 and not _share_a_base(nodes))

    def functions_of_many_parameters(self) -> list[str]:
        found = []
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _parameters(node) > MOST_PARAMETERS:
                    found.append(f"{name}.{node.name} ({_parameters(node)})")
        return sorted(found)

    def classes_of_many_fields(self) -> list[str]:
        found = [(f"{name}.{node.name}", len(_fields(node))) for name, node in self.classes()]
        return sorted(f"{name} ({count})" for name, count in found if count > MOST_FIELDS)


def _share_a_base(nodes: list[ast.ClassDef]) -> bool:
    bases = [{ast.unparse(base) for base in node.bases} for node in nodes]
    return bool(set.intersection(*bases))


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in given if each.arg not in ("self", "cls")])


def _fields(node: ast.ClassDef) -> set[str]:
    """Returns the attributes that the class declares, or that its __init__ sets."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    for inner in (part for each in made for part in ast.walk(each)):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            declared.add(inner.attr)
    return declared


def _circles(graph: dict[str, set[str]]) -> int:
    """Returns how many modules are part of a circle of imports."""
    left = {name: set(others) for name, others in graph.items()}
    count = 0
    while True:
        try:
            TopologicalSorter(left).prepare()
            return count
        except CycleError as error:
            circle = set(error.args[1])
            count += len(circle)
            left = {name: others - circle for name, others in left.items() if name not in circle}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    bench = Benchmark("house", seed=0)
    house = Source()
    most, fullest = house.fullest_folder()
    lone, twice = house.of_one_importer(), house.names_twice()
    wide, fat = house.functions_of_many_parameters(), house.classes_of_many_fields()
    between = house.folder_circles()
    counts = (
        ("lines of stretto/", lines(PACKAGE), 58_000),
        ("modules of stretto/", len(house.modules), 330),
        ("modules that one other imports", len(lone), 40),
        ("lines of tests/", lines(ROOT / "tests"), 50_000),
        ("lines of benchmarks/", lines(ROOT / "benchmarks"), 16_000),
        ("modules in the fullest folder", most, 15),
        ("pairs of neighbouring folders that import each other", len(between), 0),
        ("modules in circles", house.file_circles(), 0),
        ("class names that occur twice", len(twice), 0),
        (f"functions with more than {MOST_PARAMETERS} parameters", len(wide), 0),
        (f"classes with more than {MOST_FIELDS} fields", len(fat), 3),
    )
    for what, count, target in counts:
        bench.claim(what, paper="-", target=f"≤ {target:,}", ours=count, met=count <= target)
    named = {"fullest folder": [fullest], "class names twice": twice, "parameters": wide, "fields": fat}
    for what, names in (named | {"folders": [" ↔ ".join(pair) for pair in between], "one importer": lone}).items():
        bench.row(what=what, names=", ".join(names))
    bench.finish()


if __name__ == "__main__":
    main()
