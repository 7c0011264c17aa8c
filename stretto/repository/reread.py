"""Reads one repository again and again: an application whose files are as they were is not read anew.

To read a small application takes milliseconds of Python's time, which are those of queries as well, and a server reads
its repository for every change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from stretto.repository.application import ApplicationFiles
from stretto.repository.files import MAX_ENTRIES
from stretto.repository.problems import Problems, Unreadable
from stretto.repository.read import application_places, read_one, repository_of
from stretto.repository.repository import Repository

# A file that changed so shortly before it was looked at may change again without its times telling.
SETTLED_NS = 2_000_000_000

Stamp = tuple[tuple[str, int, int, int, int], ...]


class Reader:
    """In one thread at a time."""

    def __init__(self, reference: str | Path):
        self._reference = reference
        self._known: dict[Path, tuple[Stamp, ApplicationFiles]] = {}

    def read(self, before: Iterable[ApplicationFiles] = ()) -> Repository:
        """As `read_repository` does."""
        found: list[ApplicationFiles | Unreadable] = []
        known: dict[Path, tuple[Stamp, ApplicationFiles]] = {}
        for place in application_places(self._reference, Problems()):
            stamp = stamp_of(place.path)  # before it is read: whatever changes meanwhile is read the next time
            earlier = self._known.get(place.path)
            is_as_before = stamp is not None and earlier is not None and earlier[0] == stamp
            application = earlier[1] if earlier is not None and is_as_before else read_one(place)
            found.append(application)
            if stamp is not None and isinstance(application, ApplicationFiles):
                known[place.path] = (stamp, application)
        self._known = known
        return repository_of(str(self._reference), found, before)


def stamp_of(folder: Path) -> Stamp | None:
    """Changes with every file in it. None where times do not tell: something changed just now, or a symbolic link leads
    elsewhere.
    """
    seen: list[tuple[str, int, int, int, int]] = []
    newest_ns, folders = 0, [str(folder)]
    try:
        if os.path.islink(folder):
            return None
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_symlink() or len(seen) >= MAX_ENTRIES:
                        return None
                    if entry.is_dir():
                        folders.append(entry.path)
                    seen.append((entry.path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
                    newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:  # it goes while it is looked at
        return None
    return None if newest_ns > time.time_ns() - SETTLED_NS else tuple(sorted(seen))
