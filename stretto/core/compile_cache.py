"""Where compiled code is kept: in the user's cache, or ready-made beside the package, which is only read.

Numba checks the file of the function itself, not the files of those it calls. Here the stamp of a cached function is a
digest of its file and of all files of the package that it imports, directly or not, so a changed rule or constant can
never run from an old cache. Files are found by content, so a cache may be made on one machine and shipped to another:
code for this very processor is taken first, then code for any processor of its kind.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = PACKAGE / "_compiled"  # made by hatch_build.py
ANY_PROCESSOR = ("generic", "")  # as Numba names it: the processor and its features
KEPT_VERSIONS = 4  # of one function, in the user's cache
_IMPORT = re.compile(r"^\s*(?:from\s+stretto\.?([\w.]*)\s+import\s+(\([^)]*\)|.*)|import\s+stretto\.([\w.]+))", re.M)


def user_folder() -> Path:
    """Beside the user's other caches; STRETTO_CACHE_DIR moves it."""
    root = os.environ.get("STRETTO_CACHE_DIR")
    if not root:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(caches, "stretto")
    return Path(root) / "compiled"


@cache
def source_stamp(file: Path, package: Path = PACKAGE) -> str:
    """Of the file and all that it imports of the package, by content; where they are does not matter."""
    digest = hashlib.sha256()
    for path in sorted(_with_imported(file, package)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _with_imported(file: Path, package: Path) -> set[Path]:
    paths: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in paths:
            paths.add(path)
            waiting.extend(_imported(path, package))
    return paths


@cache
def _imported(file: Path, package: Path) -> list[Path]:
    """The files of the package that this one imports, wherever in it."""
    paths = []
    for module, names, plain in _IMPORT.findall(file.read_text(encoding="utf-8")):
        parts = (module or plain).split(".")
        names = re.findall(r"\w+", names)
        paths += [package.joinpath(*parts), *(package.joinpath(*parts, name) for name in names)]
    return [path.with_suffix(".py") for path in paths if path.with_suffix(".py").is_file()]


class SourceLocator:
    """Numba's cache by the content of the sources. Making one touches no folder."""

    def __init__(self, py_file: str) -> None:
        self._py_file = py_file

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> SourceLocator:
        return cls(py_file)

    def get_source_stamp(self) -> str:
        return source_stamp(Path(self._py_file).resolve())

    def get_disambiguator(self) -> str:
        return self.get_source_stamp()[:16]

    def get_cache_path(self) -> str:
        return str(user_folder())

    def ensure_cache_path(self) -> None:
        user_folder().mkdir(parents=True, exist_ok=True)


class SourceCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (SourceLocator,)


class CompiledCache(FunctionCache):  # type: ignore[misc]
    """The cache of one function. A folder that cannot be read or written is as good as none."""

    _impl_class = SourceCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Without what Numba prepares for compiling, which takes longer than all else and is made when it is needed.

        What cached code calls outside itself is known since Numba was imported: its runtime and C's mathematics, but
        not hashes, which compiled code here must not use.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        signature, (triple, *processor), code = self._index_key(sig, target_context.codegen())
        for folder, wanted in (
            (self._cache_path, tuple(processor)),
            (self._cache_path, ANY_PROCESSOR),
            (SHIPPED, ANY_PROCESSOR),
        ):
            file = IndexDataCacheFile(str(folder), self._impl.filename_base, self._impl.locator.get_source_stamp())
            with suppress(OSError):
                data = file.load((signature, (triple, *wanted), code))
                if data is not None:
                    return self._impl.rebuild(target_context, data)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
            self._forget_old_versions()

    def _forget_old_versions(self) -> None:
        """A version in use that loses its cache compiles again."""
        base = self._impl.filename_base.replace(self._impl.locator.get_disambiguator(), "*")
        indexes = sorted(Path(self._cache_path).glob(f"{base}.nbi"), key=lambda path: path.stat().st_mtime)
        for index in indexes[:-KEPT_VERSIONS]:
            for path in index.parent.glob(f"{index.stem}.*"):
                path.unlink(missing_ok=True)
