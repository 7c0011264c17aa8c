"""Plans judged for an application are kept beside its variants; the zoo's are for the profiles that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.core.conditions import Conditions
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.live.delays import DelayMeter
from stretto.planners.candidates import make
from stretto.planning.session import Session
from stretto.repository.judged import judged_place
from stretto.repository.read import read_repository
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.service import Empirical
from stretto.sim.simulator import simulate
from stretto.twin.library_file import load_library
from tests.repository.build import KIND, build

ZOO = [
    (application.name, kind)
    for application in read_repository("zoo").applications
    for kind in sorted({profile.kind for variant in application.variants for profile in variant.profiles})
]
# Its best variant is ten points above the next: for those a start plan may risk two queries in a hundred.
MOST_LATE = {"activity_specialists": 0.025}


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
    """Where this fails, on a machine with two cores:
    stretto.cli.start_plans.judge_start_plans([Path("stretto/zoo/NAME")], KIND, "cpu"), or "cuda" for a GPU's kind.
    """
    repository = read_repository(f"zoo:{name}")
    library = load_library(judged_place(repository.applications[0], kind).path)
    deployment, _ = repository.deployment(1, Quantile.MEAN, kind=kind)
    assert library.judgements_for(deployment) == library.judgements != ()


@pytest.mark.parametrize(("name", "kind"), [each for each in ZOO if each[1].startswith("cpu")])
def test_a_start_plan_leaves_slack(name: str, kind: str) -> None:
    """Nobody has measured what else runs on the machine: one batch in four that takes twice as long makes few late."""
    repository = read_repository(f"zoo:{name}")
    deployment, _ = repository.deployment(1, Quantile.MEAN, kind=kind)
    most = 0.7 * fluid_goodput(deployment, (1.0,))  # above, there is no slack to leave
    judgements = load_library(judged_place(repository.applications[0], kind).path).judgements
    eased = [each for each in judgements if each.verdict.rates[0] <= most]
    assert len(eased) > 2
    for judgement in eased:
        (rate,) = judgement.verdict.rates
        session = Session(make(judgement.verdict.candidate))
        plan = session.first(deployment, 0, Conditions(delays=DelayMeter().delays), expected_rates=(rate,)).plan
        load, service = Load(Poisson(), rate), Empirical((1.0, 1.0, 1.0, 2.0))
        run = simulate(deployment, lambda view, plan=plan: plan, load, seconds=4000 / rate, seed=5, service=service)
        late = 1 - run.summary.on_time_rate
        assert late < MOST_LATE.get(name, 0.01), judgement.verdict.candidate
