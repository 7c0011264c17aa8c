"""Reads one repository again and again: an application whose files are as they were is not read anew.

To read a small application takes milliseconds of Python's time, which are those of queries as well, and a server reads
its repository for every change.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from stretto.repository.application import ApplicationFiles, read_application
from stretto.repository.files import MAX_ENTRIES, MAX_MODEL_BYTES
from stretto.repository.problems import Problems, RepositoryError
from stretto.repository.read import application_places
from stretto.repository.repository import Repository

# A file that changed so shortly before it was looked at may change again without its times telling.
SETTLED_NS = 2_000_000_000

Stamp = tuple[tuple[str, int, int, int, int], ...]


class Reader:
    """In one thread at a time."""

    def __init__(self, reference: str | Path):
        self._reference = reference
        self._known: dict[Path, tuple[Stamp, ApplicationFiles]] = {}

    def read(self) -> Repository:
        """As `read_repository` does."""
        problems = Problems()
        applications: list[ApplicationFiles] = []
        known: dict[Path, tuple[Stamp, ApplicationFiles]] = {}
        for place in application_places(self._reference, problems):
            stamp = stamp_of(place.path)  # before it is read: whatever changes meanwhile is read the next time
            before = self._known.get(place.path)
            if stamp is not None and before is not None and before[0] == stamp:
                application: ApplicationFiles | None = before[1]
            else:
                own_problems = Problems()
                application = read_application(place, MAX_MODEL_BYTES, own_problems)
                for problem in own_problems.found:
                    problems.add(problem)
                stamp = None if own_problems.errors else stamp
            if application is not None:
                applications.append(application)
                if stamp is not None:
                    known[place.path] = (stamp, application)
        if problems.errors:
            raise RepositoryError(problems.errors, str(self._reference))
        self._known = known
        return Repository(str(self._reference), tuple(applications))


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
