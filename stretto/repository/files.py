"""Files of a repository, read with care: nothing outside the folder, nothing that is no plain file, nothing too large.

A `Place` knows where the folder ends. Symbolic links may lead anywhere inside it; one that leads out is refused.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from stretto.config.fields import ConfigError, Fields, parse_fields, parse_json_fields, shown

MAX_TOML_BYTES = 1_000_000
MAX_JSON_BYTES = 16_000_000
MAX_LABEL_BYTES = 1_000_000
MAX_MODEL_BYTES = 64 * 2**30
MAX_ENTRIES = 100_000
MAX_PATH_TEXT = 512


@dataclass(frozen=True)
class Place:
    """A file or folder; `boundary` is the resolved folder that it must not leave, `label` what people call it."""

    boundary: Path
    path: Path
    label: str

    def child(self, name: str) -> Place:
        shown_name = name if name.isprintable() else ascii(name)[1:-1]
        return Place(self.boundary, self.path / name, f"{self.label}/{shown_name}")

    def named(self, fields: Fields, key: str, default: str | None = None) -> Place:
        """The file that a key names, inside this folder."""
        text = fields.text(key, default)
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or "\\" in text or not text.isprintable() or not path.parts:
            fields.fail(f"{key} is {shown(text)}; give a path inside this folder, without ..", key)
        if len(text) > MAX_PATH_TEXT:
            fields.fail(f"{key} is longer than {MAX_PATH_TEXT} characters", key)
        return self.child(path.as_posix())

    def exists(self) -> bool:
        """Also true of a link that leads nowhere: reading it then says so."""
        return os.path.lexists(self.path)

    def resolved(self) -> Path:
        """The real path, which lies inside the boundary."""
        try:
            real = self.path.resolve(strict=True)
        except FileNotFoundError:
            self.fail("this symbolic link leads nowhere" if os.path.islink(self.path) else "there is no such file")
        except (OSError, RuntimeError) as error:
            self.fail(f"cannot be read ({getattr(error, 'strerror', None) or 'links in a circle'})")
        if not real.is_relative_to(self.boundary):
            self.fail("leads outside the repository by a symbolic link; put a copy inside, or a link that stays inside")
        return real

    def file(self, max_bytes: int) -> Path:
        """The real path of a plain file of at most that size. Pipes and devices are none."""
        real = self.resolved()
        try:
            status = real.stat()
        except OSError as error:
            self.fail(f"cannot be read ({error.strerror or 'input error'})")
        if not stat.S_ISREG(status.st_mode):
            self.fail("is a folder, but a file must stand here" if stat.S_ISDIR(status.st_mode) else "is no plain file")
        if status.st_size > max_bytes:
            self.fail(f"holds {status.st_size} bytes; at most {max_bytes} are taken")
        return real

    def text(self, max_bytes: int) -> str:
        """The whole of a UTF-8 file."""
        try:
            with self.file(max_bytes).open("rb") as file:
                content = file.read(max_bytes + 1)
            return content[:max_bytes].decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ConfigError(self.label, f"not UTF-8 text (byte {error.start})", line) from None
        except OSError as error:
            self.fail(f"cannot be read ({error.strerror or 'input error'})")

    def toml(self) -> Fields:
        return parse_fields(self.text(MAX_TOML_BYTES), self.label, self.path.parent)

    def json(self) -> Fields:
        return parse_json_fields(self.text(MAX_JSON_BYTES), self.label, self.path.parent)

    def is_folder(self) -> bool:
        return os.path.isdir(self.path)

    def is_broken_link(self) -> bool:
        return os.path.islink(self.path) and not os.path.exists(self.path)

    def is_bare(self) -> bool:
        """A folder that is empty, as one is that is being copied, or that may not be looked into."""
        try:
            with os.scandir(self.path) as entries:
                return next(entries, None) is None
        except OSError:
            return True

    def entries(self) -> list[Place]:
        """What the folder holds, by name, without what is hidden or private (a leading dot or underscore)."""
        folder = self.resolved()
        names: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for count, entry in enumerate(entries):
                    if count >= MAX_ENTRIES:
                        self.fail(f"holds more than {MAX_ENTRIES} files; a repository is a small folder")
                    if not entry.name.startswith((".", "_")):
                        names.append(entry.name)
        except NotADirectoryError:
            self.fail("is a file, but a folder must stand here")
        except OSError as error:
            self.fail(f"cannot be read ({error.strerror or 'input error'})")
        return [self.child(name) for name in sorted(names)]

    def fail(self, message: str) -> NoReturn:
        raise ConfigError(self.label, message)
