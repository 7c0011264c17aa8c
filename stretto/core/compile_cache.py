"""Where compiled code is kept: in the user's cache, or ready-made beside the package, which is only read.

Numba checks the file of the function itself, not the files of those it calls. Here the stamp of a cached function is a
digest of its file and of all files of the package that it imports, directly or not, so a changed rule or constant can
never run from an old cache. Files are found by content, so a cache may be made on one machine and shipped to another:
code for this very processor is taken first, then code for any processor of its kind.

A file holds a pickle, and whoever writes one can run code here. So the user's folder is used only where nobody else may
write to it, and a file only where it belongs to this user or to root. A digest in front of each pickle shows damage
before anything is unpickled: what is damaged is thrown away and compiled anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
import shutil
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

log = logging.getLogger("stretto.core.compile_cache")

PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = PACKAGE / "_compiled"  # made by hatch_build.py
ANY_PROCESSOR = ("generic", "")  # as Numba names it: the processor and its features
KEPT_VERSIONS = 4  # of one function, in the user's cache
SUFFIX = ".nbc"
DIGEST_BYTES = hashlib.sha256().digest_size
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
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


class DamagedFile(Exception):
    """A file of the cache that does not hold what was written to it, or that somebody else may have written."""


def is_ours(status: os.stat_result) -> bool:
    """Only this user, or root, can have written it."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & OTHERS_WRITE


def may_use(folder: Path) -> bool:
    """Whether nobody else may write to it. What is shipped is as safe as the package that it lies in."""
    if folder == SHIPPED:
        return True
    with suppress(OSError):
        if is_ours(folder.stat()):
            return True
        warn_of_others(folder)
    return False


@cache
def warn_of_others(folder: Path) -> None:
    """Once."""
    log.warning(
        "the compile cache %s is not used, because other users may write to it and its files are run as code; remove "
        "it, or make it yours alone (chown, chmod go-w). Until then every start compiles",
        folder,
    )


def digest_of(name: str, content: bytes) -> bytes:
    """The name is a part of it, so that a file in another one's place is seen as damage."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def open_at_once(path: str, flags: int) -> int:
    """Also where it is a pipe, which nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_file(path: Path) -> bytes | None:
    """What was written to a file of the cache; None where there is no such file. DamagedFile where that is not what it
    holds now.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not (path.parent == SHIPPED or is_ours(status)):
                raise DamagedFile
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        raise DamagedFile from None
    digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if digest != digest_of(path.name, content):
        raise DamagedFile
    return content


def write_file(path: Path, content: bytes) -> None:
    """All of it or nothing, whoever else writes the same."""
    descriptor, draft = mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)  # whatever the umask lets others do
            file.write(digest_of(path.name, content) + content)
        os.replace(draft, path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def throw_away_damaged(folder: Path) -> None:
    """All damaged files of the folder together, so that one process says it and no other meets them."""
    files = list(folder.glob(f"*{SUFFIX}"))
    damaged = [path for path in files if is_damaged(path)]
    if damaged:
        log.warning(
            "%d of %d files of the compile cache %s are damaged; what they held is compiled anew, which takes a while",
            len(damaged),
            len(files),
            folder,
        )
    if folder != SHIPPED:
        for path in damaged:
            throw_away(path)


def is_damaged(path: Path) -> bool:
    try:
        read_file(path)
    except DamagedFile:
        return True
    return False


def throw_away(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


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
        user_folder().mkdir(mode=0o755, parents=True, exist_ok=True)


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
        own = Path(self._cache_path)
        for folder, wanted in ((own, tuple(processor)), (own, ANY_PROCESSOR), (SHIPPED, ANY_PROCESSOR)):
            if may_use(folder):
                path = folder / self._file_name((signature, (triple, *wanted), code))
                try:
                    content = read_file(path)
                    if content is not None:
                        return self._impl.rebuild(target_context, pickle.loads(content))
                except DamagedFile:
                    throw_away_damaged(folder)
                except Exception as error:  # whole, but of other libraries than those that are installed
                    log.warning("a file of the compile cache cannot be loaded and is made anew: %s: %r", path, error)
                    throw_away(path)
        return None

    def _file_name(self, key: tuple[Any, ...]) -> str:
        """One file for each function, its sources, its arguments and the processor that it was compiled for."""
        whole = repr((numba.__version__, self._impl.locator.get_source_stamp(), key))
        return f"{self._impl.filename_base}.{hashlib.sha256(whole.encode()).hexdigest()[:16]}{SUFFIX}"

    def save_overload(self, sig: Any, data: Any) -> None:
        if not self._impl.check_cachable(data):
            return
        with suppress(OSError):
            folder = Path(self._cache_path)
            self._impl.locator.ensure_cache_path()
            if may_use(folder):
                path = folder / self._file_name(self._index_key(sig, data.codegen))
                write_file(path, dumps(self._impl.reduce(data)))
                self._forget_old_versions(folder)

    def _forget_old_versions(self, folder: Path) -> None:
        """A version in use that loses its cache compiles again."""
        base = self._impl.filename_base
        pattern = base.replace(self._impl.locator.get_disambiguator(), "*")
        files = sorted(folder.glob(f"{pattern}.*"), key=lambda path: path.stat().st_mtime, reverse=True)
        versions = list(dict.fromkeys(path.name[: len(base)] for path in files))
        for path in files:
            if path.name[: len(base)] in versions[KEPT_VERSIONS:]:
                path.unlink(missing_ok=True)
