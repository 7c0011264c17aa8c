"""Makes mutants of the rules and of the planners, one changed operator or number each, and names those that live.

    python tests/mutate.py --count 40 --seed 1
    python tests/mutate.py --count 200 --jobs 16
    python tests/mutate.py stretto/dispatch/late.py --line 102

A mutant lives where the tests that import its module and those of its folder pass in spite of it. Some are equivalent:
no input tells them apart. The others name a decision that no test holds. The dispatcher's tests run as plain Python
(STRETTO_PURE=1), so that nothing is compiled and an index outside its array shows. The working tree is copied first,
and stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from stretto.core.compile_cache import user_folder

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("stretto/dispatch", "stretto/planning", "stretto/planners", "stretto/twin/judge.py")
CACHE = ".cache"  # in each copy
PURE_FOLDER = "stretto/dispatch"  # elsewhere tests solve whole decision processes, which needs compiled code

COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
CALCULATED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

Change = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True)
class Mutant:
    """One change in one file: of the node that stands at this place in the order of `ast.walk`."""

    file: str
    line: int
    column: int
    node: int
    what: str
    change: Change

    def source(self) -> str:
        tree = ast.parse((ROOT / self.file).read_text(encoding="utf-8"))
        changed = list(ast.walk(tree))[self.node]
        return ast.unparse(_Replace(changed, self.change(deepcopy(changed))).visit(tree))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}: {self.what}"


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, by: ast.AST) -> None:
        self.node, self.by = node, by

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.by, node) if node is self.node else self.generic_visit(node)


def mutants_of(file: str) -> list[Mutant]:
    """All of a file: of what functions do, and not of their names, types, texts and errors."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    inside = {id(node) for function in _functions(tree) for statement in function.body for node in ast.walk(statement)}
    passed_over = {id(node) for parent in ast.walk(tree) for part in _passed_over(parent) for node in ast.walk(part)}
    mutants = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in inside and id(node) not in passed_over:
            for what, change in changes_of(node):
                mutants.append(
                    Mutant(file, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), number, what, change)
                )
    return mutants


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _passed_over(parent: ast.AST) -> list[ast.AST]:
    if isinstance(parent, ast.FunctionDef):
        return [parent.args, *parent.decorator_list, *([parent.returns] if parent.returns else [])]
    if isinstance(parent, ast.AnnAssign):
        return [parent.annotation]
    return [parent] if isinstance(parent, ast.Raise | ast.JoinedStr) else []


def changes_of(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """What each change does, in words, and how."""
    before = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARED[type(operator)]:
                yield _told(before, lambda n, place=place, other=other: _with_item(n, "ops", place, other()), node)
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in CALCULATED:
        yield _told(before, lambda n: _with(n, "op", CALCULATED[type(n.op)]()), node)
    elif isinstance(node, ast.BoolOp):
        yield _told(before, lambda n: _with(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And()), node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield _told(before, lambda n: n.operand, node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _told(before, lambda n: _with(n, "value", not n.value), node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        for step in (1, -1):
            yield _told(before, lambda n, step=step: _with(n, "value", n.value + step), node)
    elif _can_go(node):
        yield _told(before, lambda n: ast.Pass(), node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = "max" if node.func.id == "min" else "min"
        yield _told(before, lambda n: _with(n, "func", ast.Name(other)), node)


def _can_go(node: ast.AST) -> bool:
    """A statement that leaves the rest as it is: continue, break, a return of nothing, a call."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Continue | ast.Break) or (isinstance(node, ast.Return) and node.value is None)


def _told(before: str, change: Change, node: ast.AST) -> tuple[str, Change]:
    return f"{before} → {ast.unparse(change(deepcopy(node)))}", change


def _with(node: ast.AST, field: str, value: object) -> ast.AST:
    setattr(node, field, value)
    return node


def _with_item(node: ast.AST, field: str, place: int, value: object) -> ast.AST:
    getattr(node, field)[place] = value
    return node


def tests_of(file: str) -> list[str]:
    """Those that import the module, wherever they are, then all of its folder."""
    path = Path(file)
    folder = ROOT / "tests" / path.parent.relative_to("stretto")
    while not folder.is_dir():
        folder = folder.parent
    module = re.compile(rf"from {'.'.join(path.with_suffix('').parts)} import")
    near = [test for test in sorted((ROOT / "tests").rglob("test_*.py")) if module.search(test.read_text("utf-8"))]
    return [str(test.relative_to(ROOT)) for test in near] + [str(folder.relative_to(ROOT))]


def copy_of_tree(copy: Path) -> Path:
    """With a compile cache of its own: a cache keeps few versions of a function, and each mutant makes one."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "results"))
    if user_folder().is_dir():
        shutil.copytree(user_folder(), copy / CACHE / "compiled")
    return copy


def is_killed(copy: Path, mutant: Mutant | None, tests: list[str], limit_s: float, is_pure: bool) -> bool:
    """Whether a test fails, or no end comes within the limit."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(copy), os.environ.get("PYTHONPATH", ""))),
        "STRETTO_PURE": "1" if is_pure else "",
        "STRETTO_CACHE_DIR": str(copy / CACHE),
    }
    if mutant is not None:
        (copy / mutant.file).write_text(mutant.source(), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    process = subprocess.Popen(
        [*command, *dict.fromkeys(tests)],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # what its tests started ends with it
        process.communicate()
        return True
    finally:
        if mutant is not None:
            shutil.copy(ROOT / mutant.file, copy / mutant.file)
    if process.returncode not in (0, 1, 2) and process.returncode > 0:  # below 0: a signal ended it, as SIGSEGV does
        raise RuntimeError(output.decode())
    return process.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FOLDERS, help="files or folders; the rules and planners as a rule")
    parser.add_argument("--count", type=int, default=20, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at once, each in its own copy")
    parser.add_argument("--line", type=int, help="all mutants of this line, and no others")
    parser.add_argument("--tests", nargs="+", help="run these, in the place of those of the module's folder")
    parser.add_argument("--limit-s", type=float, default=300.0, help="a mutant that takes longer is killed")
    asked = parser.parse_args()

    paths = [ROOT / name for name in asked.files]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    mutants = [mutant for file in files for mutant in mutants_of(str(file.relative_to(ROOT)))]
    if asked.line is not None:
        mutants = [mutant for mutant in mutants if mutant.line == asked.line]
    elif len(mutants) > asked.count:
        mutants = random.Random(asked.seed).sample(mutants, asked.count)

    alive = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        copies: Queue[Path] = Queue()
        for job in range(asked.jobs):
            copies.put(copy_of_tree(Path(folder) / str(job)))

        def tried(mutant: Mutant) -> tuple[Mutant, bool, float]:
            copy, began = copies.get(), time.monotonic()
            try:
                is_pure = mutant.file.startswith(PURE_FOLDER)
                died = is_killed(copy, mutant, asked.tests or tests_of(mutant.file), asked.limit_s, is_pure)
            finally:
                copies.put(copy)
            return mutant, died, time.monotonic() - began

        for number, waited in enumerate(as_completed([pool.submit(tried, mutant) for mutant in mutants]), 1):
            mutant, died, took_s = waited.result()
            if not died:
                alive.append(mutant)
            verdict = "died" if died else "LIVES"
            print(f"{number}/{len(mutants)} {verdict} after {took_s:.0f} s: {mutant}", flush=True)
    print(f"\n{len(mutants) - len(alive)} of {len(mutants)} died. Alive:")
    for mutant in alive:
        print(f"  {mutant}")


if __name__ == "__main__":
    main()
