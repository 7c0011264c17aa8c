"""Whether a repository changed: by names, times, sizes and permissions of its files."""

from __future__ import annotations

import os
from pathlib import Path

from stretto.repository.repository import Repository


def signature(repository: Repository) -> int:
    """A number that changes when a file of the repository does, or one comes or goes."""
    seen: list[tuple[str, int, int, int]] = []
    root = Path(repository.reference)
    roots = [root] if root.is_dir() else [files.folder for files in repository.applications]
    for folder in roots:
        for path, names, files in os.walk(folder):
            names.sort()
            seen.append((path, 0, 0, 0))
            for name in sorted(files):
                try:
                    status = os.stat(os.path.join(path, name))
                except OSError:
                    continue
                seen.append((os.path.join(path, name), status.st_mtime_ns, status.st_size, status.st_mode))
    return hash(tuple(seen))
