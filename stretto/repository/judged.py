"""Where an application keeps the plans that were judged for it, beside its variants: judged/KIND.json."""

from __future__ import annotations

from stretto.core.application import check_name
from stretto.repository.application import ApplicationFiles
from stretto.repository.files import Place

JUDGED_FOLDER = "judged"


def judged_place(files: ApplicationFiles, kind: str) -> Place:
    """For workers of that kind; whether anything is there has to be seen."""
    check_name("machine kind", kind)
    return files.place.child(JUDGED_FOLDER).child(f"{kind}.json")
