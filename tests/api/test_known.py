"""What a server knows of verdicts when it starts: start plans of the applications that it serves, and a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stretto.api.known import start_libraries, verdict_memory
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.core.worker import workers
from stretto.live.options import ServiceOptions
from stretto.repository.read import read_repository, zoo_folder
from stretto.repository.repository import Repository
from stretto.twin.library_file import save_library
from tests.twin.libraries import library

KIND = "cpu-aarch64-neoverse-n1-2c"
GPU = "gpu-nvidia-h200"
KINDS = (KIND, GPU)


def served(repository: Repository, *fleet: tuple[str, int]) -> Deployment:
    slots = tuple(worker for kind, count in fleet for worker in workers(count, kind))
    return repository.deployment(slots, Quantile.MEAN)[0]


def test_a_server_of_the_zoo_starts_with_a_judged_plan_for_each_application() -> None:
    repository = read_repository("zoo")
    memory = verdict_memory(ServiceOptions("zoo", planner="judged", is_fresh=True), repository, KINDS)
    deployment = served(repository, (KIND, 1))
    known = memory.known(deployment)
    called = {tuple(rate > 0 for rate in verdict.rates) for verdict in known}
    count = len(repository.applications)
    alone = {tuple(number == place for number in range(count)) for place in range(count)}
    assert called == alone, "each is judged for itself"
    assert len(start_libraries(repository, KINDS, deployment)) == count
    twice = memory.known(served(repository, (KIND, 2)))
    assert [verdict.rates for verdict in twice] == [tuple(2 * rate for rate in verdict.rates) for verdict in known]


def test_there_are_none_for_a_machine_that_is_not_here() -> None:
    repository = read_repository("zoo:mnist")
    assert not start_libraries(repository, (GPU,), served(repository, (KIND, 1)))
    assert start_libraries(repository, (GPU,), served(repository, (GPU, 1)))


def test_there_are_none_for_a_mixed_fleet_or_other_variants() -> None:
    repository = read_repository("zoo:mnist")
    memory = verdict_memory(ServiceOptions("zoo:mnist", planner="judged", is_fresh=True), repository, KINDS)
    assert memory.known(served(repository, (GPU, 1)))
    assert not memory.known(served(repository, (KIND, 1), (GPU, 1)))
    deployment = served(repository, (KIND, 1))
    application = deployment.applications[0]
    fewer = type(application)(application.name, application.slo_ns, application.variants[1:])
    assert not memory.known(Deployment((fewer,), deployment.workers, deployment.quantile))


def test_damaged_start_plans_are_done_without_but_a_named_file_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(zoo_folder() / "mnist", tmp_path / "mnist")
    repository = read_repository(tmp_path)
    (tmp_path / "mnist" / "judged" / f"{KIND}.json").write_text("[]")
    assert not start_libraries(repository, KINDS, served(repository, (KIND, 1)))
    assert "start plans are left aside" in caplog.text and "not a file of judged plans" in caplog.text
    named = tmp_path / "plans.json"
    named.write_text("[]")
    with pytest.raises(StrettoError, match=r"^plans.json: not a file of judged plans"):
        verdict_memory(ServiceOptions("zoo", planner="judged", plans=named), repository)
    save_library(named, library(100.0))
    assert verdict_memory(ServiceOptions("zoo", planner="judged", plans=named, is_fresh=True), repository)
    with pytest.raises(StrettoError, match="planner priced follows no judged plans"):
        ServiceOptions("zoo", planner="priced", plans=named)
