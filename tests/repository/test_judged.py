"""Plans judged for an application are kept beside its variants; the zoo's are for the profiles that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.repository.judged import judged_place
from stretto.repository.read import read_repository
from stretto.twin.library_file import load_library
from tests.repository.build import KIND, build

ZOO = [
    (application.name, kind)
    for application in read_repository("zoo").applications
    for kind in sorted({profile.kind for variant in application.variants for profile in variant.profiles})
]


def test_they_are_named_after_the_kind_and_stay_inside(tmp_path: Path) -> None:
    built = build(tmp_path / "models")
    (files,) = read_repository(built.root).applications
    place = judged_place(files, KIND)
    assert place.path == built.app / "judged" / f"{KIND}.json" and not place.exists()
    with pytest.raises(StrettoError, match="machine kind"):
        judged_place(files, "../../else")
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    place.path.parent.mkdir()
    place.path.symlink_to(outside)
    with pytest.raises(StrettoError, match="leads outside the repository"):
        place.text(100)


@pytest.mark.parametrize(("name", "kind"), ZOO)
def test_the_zoo_has_start_plans_for_every_kind_that_it_was_profiled_on(name: str, kind: str) -> None:
    """Where this fails: stretto tune zoo:NAME --kind KIND --workers 1 --out stretto/zoo/NAME/judged/KIND.json"""
    repository = read_repository(f"zoo:{name}")
    library = load_library(judged_place(repository.applications[0], kind).path)
    deployment, _ = repository.deployment(1, Quantile.MEAN, kind=kind)
    assert library.judgements_for(deployment) == library.judgements != ()
