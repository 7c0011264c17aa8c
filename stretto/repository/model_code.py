"""Code that a variant names, where it lies beside the model. Nothing of it is run here."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stretto.config.fields import ConfigError
from stretto.repository.profiles import file_sha256


def module_beside(folder: Path, code: str) -> Path | None:
    """The file of the module that "module:name" names in a variant's folder; None where it has none."""
    *packages, module = code.partition(":")[0].split(".")
    places = (folder.joinpath(*packages, f"{module}.py"), folder.joinpath(*packages, module, "__init__.py"))
    return next((place for place in places if place.is_file()), None)


def code_sha256(folder: Path, code: str) -> str:
    """Changes with the name, and with any Python file of the folder where the module lies there."""
    digest = hashlib.sha256(code.encode())
    try:
        if module_beside(folder, code) is not None:
            for file in sorted(folder.rglob("*.py")):
                digest.update(f"{file.relative_to(folder)} {file_sha256(file)}".encode())
    except OSError as error:  # the folder goes while it is read, or no file can have such a name
        raise ConfigError(str(folder), f"code cannot be looked for ({error.strerror or 'input error'})") from None
    return digest.hexdigest()
