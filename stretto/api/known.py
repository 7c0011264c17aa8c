"""What is known of verdicts when a server starts: a file that was named, what earlier runs learned, start plans."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.live.options import ServiceOptions
from stretto.repository.judged import judged_place
from stretto.repository.machine import present_kinds
from stretto.repository.repository import Repository
from stretto.twin.library import Library
from stretto.twin.library_file import MAX_BYTES, library_of, load_library
from stretto.twin.memory import VerdictMemory, learned_folder

log = logging.getLogger("stretto.api")


def verdict_memory(
    options: ServiceOptions, repository: Repository, kinds_here: Sequence[str] | None = None
) -> VerdictMemory:
    """StrettoError where a file that the user named is none; what else is damaged is told of, and done without.

    `kinds_here` are those of workers that this machine has; it is asked where they are not stated.
    """
    given = None if options.plans is None else load_library(options.plans)
    starts = partial(start_libraries, repository, present_kinds() if kinds_here is None else kinds_here)
    return VerdictMemory(given, starts, None if options.is_fresh else learned_folder())


def start_libraries(repository: Repository, kinds_here: Sequence[str], deployment: Deployment) -> list[Library]:
    """Of each application, for workers of one kind that this machine has: a load that keeps another one busy says
    nothing here. There are none for a mixed fleet.
    """
    if len(deployment.kinds) > 1 or deployment.kinds[0] not in kinds_here:
        return []
    served = {application.name for application in deployment.applications}
    libraries = []
    for files in repository.applications:
        place = judged_place(files, deployment.kinds[0])
        if files.name not in served or not place.exists():
            continue
        try:
            libraries.append(library_of(place.text(MAX_BYTES), place.label))
        except StrettoError as error:
            log.warning("start plans are left aside: %s", error)
    return libraries
