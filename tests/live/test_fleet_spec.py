"""What a user writes for workers."""

from __future__ import annotations

import pytest

from stretto.core.errors import StrettoError
from stretto.live import fleet
from stretto.live.fleet import (
    WorkerSpec,
    check_variants,
    deployed_workers,
    deployment_on,
    read_worker,
    slot_specs,
)
from stretto.live.options import ServiceOptions
from stretto.repository.read import read_repository


def test_devices_counts_threads_and_kinds() -> None:
    assert read_worker("cpu") == WorkerSpec("cpu")
    assert read_worker("cuda:0") == WorkerSpec("cuda:0")
    assert read_worker("cpu*2") == WorkerSpec("cpu", 2)
    assert read_worker("cpu*2,threads=4,kind=big") == WorkerSpec("cpu", 2, 4, "big")
    named = read_worker("cpu*2, variant=small,variant = first/large,variant=small")
    assert named == WorkerSpec("cpu", 2, variants=("small", "first/large"))
    for spec in (named, WorkerSpec("cuda:0", 1, 4, "big")):
        assert read_worker(spec.text) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpu", "there is no device 'tpu'"),
        ("cuda:x", "there is no device 'cuda:x'"),
        ("cpu:0", "there is no device 'cpu:0'"),
        ("cpu*none", "count is 'none'"),
        ("cpu*²", "count is '²'"),
        ("cpu*" + "1" * 5000, "count is '1111"),
        ("cpu*0", "count is '0'"),
        ("cpu*2000", "workers is 2000"),
        ("cpu,cores=2", "'cores=2' is not threads=N, kind=NAME or variant=NAME"),
        ("cpu,variant=", "'variant=' is not threads=N, kind=NAME or variant=NAME"),
        ("cpu,threads=", "is not threads=N"),
        ("cpu,threads=9999", "threads is 9999"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        read_worker(text)


def test_slots_of_a_fleet() -> None:
    repository = read_repository("zoo:mnist")
    kinds = sorted({profile.kind for variant in repository.applications[0].variants for profile in variant.profiles})
    fleet = (read_worker(f"cpu*2,kind={kinds[0]}"), read_worker(f"cpu,threads=2,kind={kinds[-1]}"))
    workers = deployed_workers(fleet, repository)
    assert [worker.kind for worker in workers] == [kinds[0], kinds[0], kinds[-1]]
    assert len({worker.name for worker in workers}) == 3
    assert [spec.threads for spec in slot_specs(fleet)] == [1, 1, 2]
    deployment, _ = repository.deployment(workers)
    assert all(len(variant.profiles) == len(set(kinds[:1] + kinds[-1:])) for variant in deployment.variants)


def test_workers_that_run_named_variants() -> None:
    repository = read_repository("zoo:mnist")
    fleet = (read_worker("cpu,variant=linear"), read_worker("cpu*2,variant=mnist/resnet,variant=cnn"))
    deployment, _ = deployment_on(fleet, repository)
    by_worker = [
        {variant.name for variant in deployment.variants if variant.profile_on(worker.kind) is not None}
        for worker in deployment.workers
    ]
    assert by_worker == [{"linear"}, {"resnet", "cnn"}, {"resnet", "cnn"}]
    check_variants(fleet, repository)
    with pytest.raises(StrettoError, match=r"worker 'cpu,variant=lin': there is no variant 'lin'; .*mnist/mlp"):
        check_variants((read_worker("cpu,variant=lin"),), repository)


def test_a_number_or_a_list() -> None:
    assert ServiceOptions("zoo", worker=("cpu*2", "cpu,threads=2")).worker_count == 3
    with pytest.raises(StrettoError, match="not both"):
        ServiceOptions("zoo", workers=2, worker=("cpu",))


def test_one_worker_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "accelerator_count", lambda: 2)
    options = ServiceOptions("zoo", device="cuda")
    assert [spec.device for spec in options.fleet()] == ["cuda:0", "cuda:1"]
    assert options.worker_count == 2 and options.executor_kind == "process"
    assert ServiceOptions("zoo", device="cuda", workers=1).fleet() == (WorkerSpec("cuda", 1),)
    assert ServiceOptions("zoo", device="cuda:1").worker_count == 1, "not one for each core"
    mixed = ServiceOptions("zoo", worker=("cuda:0", "cpu*2"))
    assert mixed.worker_count == 3 and mixed.executor_kind == "process"
    assert ServiceOptions("zoo").executor_kind == "thread"
    assert ServiceOptions("zoo", device="cuda", executor="thread").executor_kind == "thread", "as it was told"
