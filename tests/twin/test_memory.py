"""What is known before a start, what stands once conditions were measured, and what is kept for the next start."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.verdict import Candidate
from stretto.core.worker import workers
from stretto.planners.judged.ledger import LEAST_RATE, RUNG
from stretto.planners.registry import ENTRIES
from stretto.twin.library_file import load_library
from stretto.twin.live import Case, figures_of
from stretto.twin.memory import KEPT_FILES, VerdictMemory, learned_folder
from stretto.twin.setting import Setting
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import PRICED, library, verdict
from tests.twin.made import stretch

OTHER = Candidate("jellyfish_plus")


def setting(control_ns: int = 300_000) -> Setting:
    return Setting({"app": stretch("poisson", seconds=20.0)}, delays=Delays(control_ns=control_ns))


def case(deployment: Deployment, control_ns: int = 300_000) -> Case:
    return Case(deployment, setting(control_ns))


def measured(control_ns: int = 300_000) -> Mapping[str, float]:
    return figures_of(setting(control_ns), small_deployment(3))


def test_nothing_is_known_of_a_fresh_deployment(tmp_path: Path) -> None:
    memory = VerdictMemory(folder=tmp_path)
    assert not memory.known(small_deployment(3))
    memory.save()
    assert not list(tmp_path.iterdir())


def test_what_a_run_judged_is_known_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    memory, deployment = VerdictMemory(folder=folder), small_deployment(3)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.keep(deployment, verdict(300.0, candidate=OTHER), case(deployment))
    memory.keep(deployment, verdict(101.0, candidate=OTHER), case(deployment))
    memory.save()
    again = VerdictMemory(folder=folder)
    assert again.known(small_deployment(3)) == [verdict(300.0, candidate=OTHER), verdict(101.0, candidate=OTHER)]
    assert not again.known(small_deployment(4)), "of another deployment nothing is known"
    (file,) = folder.iterdir()
    assert load_library(file).conditions == "measured while serving"


def test_what_was_judged_among_other_candidates_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, deployment = VerdictMemory(folder=tmp_path), small_deployment(3)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.save()
    offered = tuple(entry for entry in ENTRIES if entry.name != "priced")
    monkeypatch.setattr("stretto.planners.candidates.ENTRIES", offered)
    assert not VerdictMemory(folder=tmp_path).known(deployment)
    monkeypatch.undo()
    assert VerdictMemory(folder=tmp_path).known(deployment)


def test_a_verdict_for_a_part_of_the_workers_is_not_kept(tmp_path: Path) -> None:
    memory, deployment = VerdictMemory(folder=tmp_path), small_deployment(3)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(small_deployment(2)))
    memory.keep(small_deployment(3), verdict(100.0), case(small_deployment(3)))
    memory.save()
    assert not list(tmp_path.iterdir())


def test_it_stands_only_under_conditions_like_those_it_was_judged_under() -> None:
    deployment = small_deployment(3)
    memory = VerdictMemory(library(100.0, 300.0, figures=measured()))
    memory.known(deployment)
    assert memory.standing(deployment, (101.0,), case(deployment, 9_000_000)) is None, (
        "the handoff takes three times what need not be told apart"
    )
    assert memory.standing(deployment, (101.0,), case(small_deployment(2))) is None, "a worker is lost"
    assert memory.standing(deployment, (180.0,), case(deployment)) is None, "nobody judged that load"
    assert memory.standing(small_deployment(3), (101.0,), case(deployment)) is None, "another one is served by now"
    assert memory.standing(deployment, (101.0,), case(deployment)) == verdict(101.0)
    assert memory.standing(deployment, (101.0,), case(deployment)) is None, "once: then it is as good as any other"


def test_a_figure_that_a_short_stretch_does_not_tell_is_left_out() -> None:
    brief = Case(small_deployment(3), Setting({"app": stretch("poisson", seconds=1.5)}))
    figures = figures_of(brief.setting, brief.deployment)
    assert "short dispersion of app" in figures and "long dispersion of app" not in figures
    assert not brief.conditions().changed_to(brief.conditions()), "it was unlike itself, and judged again at every look"


def test_what_was_judged_under_nothing_measured_never_stands() -> None:
    deployment = small_deployment(3)
    memory = VerdictMemory(library(100.0))
    assert memory.known(deployment) == [verdict(100.0)]
    assert memory.standing(deployment, (100.0,), case(deployment)) is None


def test_an_application_that_nobody_calls_comes_and_goes_and_the_others_keep_their_plans(tmp_path: Path) -> None:
    """A model that was added made a server begin again with start plans, which knew nothing of how it ran."""
    alone = small_deployment(3)
    other = Application("other", alone.applications[0].slo_ns, alone.applications[0].variants)
    both = replace(alone, applications=(*alone.applications, other))
    memory = VerdictMemory()
    memory.known(alone)
    memory.keep(alone, verdict(100.0), case(alone))
    (carried,) = memory.known(both)
    assert carried.rates == (100.0, 0.0) and carried.candidate == PRICED
    assert memory.standing(both, (101.0, LEAST_RATE), case(both)) is None, "workers may be dealt out in another way now"
    judged_again = verdict(100.0, LEAST_RATE, candidate=OTHER)
    memory.keep(both, judged_again, case(both))
    memory.keep(both, verdict(300.0, 50.0), case(both))
    assert [each.candidate for each in memory.known(alone)] == [OTHER], "that for a load of both is of no use here"
    assert memory.standing(alone, (101.0,), case(alone, 9_000_000)) is None, "conditions are looked at as ever"
    assert memory.standing(alone, (101.0,), case(alone)) is not None
    assert not memory.known(replace(both, workers=small_deployment(4).workers)), "nor any of other workers"


def test_what_a_file_says_of_a_load_goes_before_what_was_judged_beside_others(tmp_path: Path) -> None:
    alone = small_deployment(3)
    other = Application("other", alone.applications[0].slo_ns, alone.applications[0].variants)
    both = replace(alone, applications=(*alone.applications, other))
    memory = VerdictMemory(folder=tmp_path)
    memory.known(alone)
    memory.keep(alone, verdict(100.0), case(alone))
    memory.known(both)
    memory.keep(both, verdict(100.0, LEAST_RATE, candidate=OTHER), case(both))
    memory.keep(both, verdict(300.0, LEAST_RATE, candidate=OTHER), case(both))
    assert {each.rates: each.candidate for each in memory.known(alone)} == {(100.0,): PRICED, (300.0,): OTHER}


@pytest.mark.parametrize("how", ["memory", "choice"])
def test_plans_do_not_stay_where_others_would_have_been_tried(how: str) -> None:
    """Another application takes memory from all, or brings a choice of variants where there was none."""
    alone = small_deployment(3)
    (application,) = alone.applications
    if how == "memory":
        held = tuple(replace(each, memory_bytes=10**9) for each in application.variants)
        application = replace(application, variants=held)
        alone = replace(
            alone, applications=(application,), workers=workers(3, memory_bytes=len(held) * 10**9 + 5 * 10**8)
        )
    else:
        alone = replace(alone, applications=(replace(application, variants=application.variants[:1]),))
    both = replace(alone, applications=(*alone.applications, replace(application, name="other")))
    memory = VerdictMemory()
    memory.known(alone)
    memory.keep(alone, verdict(100.0), case(alone))
    assert not memory.known(both)
    memory.keep(both, verdict(100.0, LEAST_RATE), case(both))
    assert not memory.known(alone)


def test_a_broken_promise_is_forgotten_here_and_in_the_file(tmp_path: Path) -> None:
    deployment = small_deployment(3)
    memory = VerdictMemory(folder=tmp_path)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.keep(deployment, verdict(300.0), case(deployment))
    memory.save()
    memory = VerdictMemory(folder=tmp_path)
    memory.known(deployment)
    memory.forget(verdict(100.0))
    assert memory.standing(deployment, (100.0,), case(deployment)) is None
    memory.save()
    assert VerdictMemory(folder=tmp_path).known(deployment) == [verdict(300.0)]


def test_a_file_that_was_named_goes_first_then_what_was_learned_then_start_plans(tmp_path: Path) -> None:
    deployment = small_deployment(3)
    loads = [round(100.0 * RUNG**step, 2) for step in range(3)]
    learned = VerdictMemory(folder=tmp_path)
    learned.known(deployment)
    for load in loads[1:]:
        learned.keep(deployment, verdict(load, candidate=OTHER), case(deployment))
    learned.save()
    start = library(*loads, candidate=replace(PRICED, options=()))
    memory = VerdictMemory(library(loads[2]), lambda deployment: (start,), tmp_path)
    known = {one.rates: one.candidate for one in memory.known(deployment)}
    assert known == {(loads[0],): Candidate("priced"), (loads[1],): OTHER, (loads[2],): PRICED}


def test_what_does_not_fit_or_is_damaged_is_told_and_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = small_deployment(3)
    memory = VerdictMemory(folder=tmp_path)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.save()
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:-40])
    other = library(100.0, deployment=small_deployment(3, slo_ms=30.0))
    with caplog.at_level(logging.WARNING):
        memory = VerdictMemory(other, folder=tmp_path)
        assert not memory.known(deployment)
    assert "learned is left aside, and judged anew" in caplog.text and "damaged" in caplog.text
    assert "judged for an SLO of 30 ms of app, not 60 ms" in caplog.text
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.save()
    assert VerdictMemory(folder=tmp_path).known(deployment), "the damaged file was replaced"


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    memory, deployment = VerdictMemory(folder=blocked / "folder"), small_deployment(3)
    memory.known(deployment)
    with caplog.at_level(logging.WARNING):
        for load in (100.0, 200.0):
            memory.keep(deployment, verdict(load), case(deployment))
            memory.save()
    assert len(caplog.records) == 1 and "not kept for the next start" in caplog.text


def test_a_disk_that_hangs_holds_nobody_who_asks(tmp_path: Path) -> None:
    """The event loop asks, and used to wait for whoever wrote. A pipe that nobody reads stands for the disk."""
    memory, deployment = VerdictMemory(folder=tmp_path), small_deployment(3)
    memory.known(deployment)
    memory.keep(deployment, verdict(100.0), case(deployment))
    memory.save()
    (file,) = tmp_path.iterdir()
    pipe = tmp_path / f".{file.name}.{os.getpid()}.part"
    os.mkfifo(pipe)
    memory.keep(deployment, verdict(200.0), case(deployment))
    saving = threading.Thread(target=memory.save, daemon=True)
    saving.start()
    asking = threading.Thread(target=memory.keep, args=(deployment, verdict(300.0), case(deployment)), daemon=True)
    saving.join(0.05)
    asking.start()
    asking.join(30)
    assert not asking.is_alive() and saving.is_alive()
    with pipe.open("rb") as reader:
        reader.read()
    saving.join(30)
    assert not saving.is_alive()


def test_files_of_long_ago_go(tmp_path: Path) -> None:
    for number in range(KEPT_FILES + 3):
        memory, deployment = VerdictMemory(folder=tmp_path), small_deployment(3, slo_ms=50.0 + number)
        memory.known(deployment)
        memory.keep(deployment, verdict(100.0), case(deployment))
        memory.save()
    assert len(list(tmp_path.iterdir())) == KEPT_FILES
    assert VerdictMemory(folder=tmp_path).known(deployment)


def test_it_is_kept_where_the_user_s_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    assert learned_folder() == tmp_path / "judged"
