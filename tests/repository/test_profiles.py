"""Stored profiles: written, read back, refused with their line; stale and foreign ones; the kind of a machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, Quantile
from stretto.repository import machine
from stretto.repository.machine import Machine, machine_kind, plain, present_kinds
from stretto.repository.problems import RepositoryError
from stretto.repository.profiles import MeasuredBatch, as_json, file_sha256, profile_path, read_profile, write_profile
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.variant import ProfileState
from tests.repository.build import KIND, Built, stored

SHA256 = "0" * 64
OTHER = "cpu-aarch64-other-2c"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = profile_path(tmp_path, KIND)
    profile = stored(SHA256, noisy=True, note="on battery", machine=Machine("P", 2, "Linux x86_64", "A GPU"))
    write_profile(path, profile)
    assert path == tmp_path / "profiles" / f"{KIND}.json"
    again = read_profile(path)
    assert as_json(again) == as_json(profile) and again.batches[8].p95 == pytest.approx(5.5)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_same_profile_is_the_same_bytes_whatever_its_order(tmp_path: Path) -> None:
    path = tmp_path / f"{KIND}.json"
    profile = stored(SHA256)
    write_profile(path, profile)
    first = path.read_bytes()
    backwards = dict(sorted(profile.batches.items(), reverse=True))
    write_profile(path, stored(SHA256, batches=backwards, alpha_ms=np.float64(0.5), memory_bytes=np.int64(2_000_000)))
    assert path.read_bytes() == first
    assert list(json.loads(first))[:3] == ["version", "kind", "machine"]
    write_profile(path, stored(SHA256, latency_ms=1 / 3))
    assert json.loads(path.read_text())["alpha_ms"] == 0.166667


def test_a_profile_becomes_a_latency_profile() -> None:
    latency = stored(SHA256).latency_profile()
    assert (latency.kind, latency.max_batch) == (KIND, 16)
    assert latency.latency_ns(8, Quantile.MEAN) == 5 * NS_PER_MS
    assert latency.latency_ns(8) == round(5.5 * NS_PER_MS)
    assert latency.latency_ns(3, Quantile.MEAN) == pytest.approx(2.5 * NS_PER_MS)
    assert stored(SHA256).latency_profile(max_batch=3).max_batch == 3
    assert stored(SHA256).latency_profile(max_batch=99).max_batch == 16


def test_profiles_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"kind": "a/b"},
        {"model_sha256": "x"},
        {"batches": {}},
        {"batches": {0: MeasuredBatch(1, 1, 1, 1, 1, 0)}},
        {"alpha_ms": float("nan")},
    ):
        with pytest.raises(StrettoError):
            stored(**({"model_sha256": SHA256} | wrong))  # type: ignore[arg-type]
    with pytest.raises(StrettoError, match="cannot fall"):
        MeasuredBatch(1, 2, 1, 3, 1, 0)
    with pytest.raises(StrettoError, match="above zero"):
        MeasuredBatch(0, 1, 1, 1, 1, 0)


def test_a_profile_is_named_after_its_kind(tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match=f"is kept in {KIND}.json, not in x.json"):
        write_profile(tmp_path / "x.json", stored(SHA256))
    (tmp_path / "file").write_text("")
    with pytest.raises(StrettoError, match="cannot be written"):
        write_profile(tmp_path / "file" / f"{KIND}.json", stored(SHA256))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "2: version is 2, but this Stretto reads 1"),
        ({"kind": "other"}, f'3: kind is "other", but the file is {KIND}.json'),
        ({"kind": "../x"}, "3: machine kind '../x' must start with a letter or digit"),
        ({"machine": None}, "4: machine is null; it must be a table"),
        ({"machine": {"processor": "x", "cores": 0, "system": "y"}}, "6: cores is 0; it must be from 1"),
        ({"threads": -1}, "10: threads is -1; it must be from 0"),
        ({"model_sha256": "A" * 64}, "11: model_sha256 must be 64 hexadecimal digits in lower case"),
        ({"batches": {}}, "12: needs batches, with at least one batch size"),
        ({"batches": {"0": {}}}, '13: "0" is no batch size; give a whole number from 1 to 4096'),
        ({"batches": {"٣": {}}}, '13: "٣" is no batch size'),
        ({"batches": {"9" * 5000: {}}}, '13: "9999'),
        ({"batches": {"1": {"mean": 1}}}, "13: [batches.1] needs p50"),
        ({"batches": {"1": []}}, "13: 1 is a list; it must be a table"),
        ({"noisy": 1}, "59: noisy is 1; give true or false"),
        ({"load_ms": float("inf")}, "58: load_ms is inf; it must be from 0"),
        ({"memory": 1}, '60: unknown key "memory" in the top level; did you mean memory_bytes?'),
    ],
)
def test_mistakes_in_a_profile_have_their_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / f"{KIND}.json"
    write_profile(path, stored(SHA256))
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=2, ensure_ascii=False))
    with pytest.raises(StrettoError) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}:{says}")


def test_a_broken_profile_is_a_problem_of_the_repository(built: Built) -> None:
    path = profile_path(built.variant("fast"), KIND)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(
        RepositoryError, match=rf"fast/profiles/{KIND}.json:\d+: not valid JSON.*; correct it, or remove the file"
    ):
        read_repository(built.root)


def test_a_deployment_rests_on_the_files(built: Built) -> None:
    (built.variant("good") / "variant.toml").write_text("max_batch = 4\nmemory_mb = 9\nload_ms = 1\n")
    built.metrics("fast", accuracy=0.7, recall=[1.0, 0.5, 0.6])
    deployment, warnings = read_repository(built.root).deployment(3, quantile=Quantile.P99)
    assert warnings == () and deployment.quantile is Quantile.P99
    assert [(worker.name, worker.kind) for worker in deployment.workers] == [(f"{KIND}-{n}", KIND) for n in range(3)]
    (rows,) = deployment.applications
    assert (rows.name, rows.slo_ns, rows.classes) == ("rows", 50 * NS_PER_MS, 3)
    fast, good = rows.variants
    assert (fast.accuracy, fast.recall, fast.input_size) == (0.7, (1.0, 0.5, 0.6), (1, 4))
    assert (fast.memory_bytes, fast.dynamic_memory_bytes, fast.load_ns) == (2_000_000, 1000, 3 * NS_PER_MS)
    assert (good.memory_bytes, good.load_ns) == (9_000_000, NS_PER_MS)
    assert (fast.profiles[0].max_batch, good.profiles[0].max_batch) == (16, 4)
    with pytest.raises(StrettoError, match="between 1 and 65536 workers, not 0"):
        read_repository(built.root).deployment(0)


def test_the_limit_of_an_application_caps_the_batch(built: Built) -> None:
    built.write_app((built.app / "app.toml").read_text() + "[limits]\nmax_batch = 2\n")
    deployment, _ = read_repository(built.root).deployment(1)
    assert {variant.profiles[0].max_batch for variant in deployment.variants} == {2}


def test_a_variant_without_a_profile_is_left_out_with_a_remedy(built: Built) -> None:
    profile_path(built.variant("fast"), KIND).unlink()
    built.profile("fast", OTHER)
    deployment, (warning,) = read_repository(built.root).deployment(1)
    assert [variant.name for variant in deployment.variants] == ["good"]
    assert warning == (
        f"{built.variant('fast')}: has no profile for machine kind {KIND} (only for {OTHER}), so it is left out; "
        f"run: stretto profile {built.root}"
    )


def test_no_profile_at_all_is_an_error_with_a_remedy(built: Built) -> None:
    for name in ("fast", "good"):
        profile_path(built.variant(name), KIND).unlink()
    message = rf"no variant has a profile for machine kind {KIND}; run: stretto profile {built.root}$"
    with pytest.raises(StrettoError, match=message):
        read_repository(built.root).deployment(1)


def test_what_is_not_enabled_is_not_served(built: Built) -> None:
    (built.variant("fast") / "variant.toml").write_text("enabled = false")
    profile_path(built.variant("fast"), KIND).unlink()
    deployment, warnings = read_repository(built.root).deployment(1)
    assert len(deployment.variants) == 1 and warnings == ()
    (built.variant("good") / "variant.toml").write_text("enabled = false")
    with pytest.raises(StrettoError, match="no variant is enabled; enable one"):
        read_repository(built.root).deployment(1)


def test_stale_and_noisy_profiles_are_told(built: Built) -> None:
    built.profile("good", noisy=True)
    built.add("fast", 0.7, profile=None, seed=7)
    repository = read_repository(built.root)
    _, warnings = repository.deployment(1)
    assert [warning.removeprefix(f"{built.app}/variants/") for warning in warnings] == [
        f"fast: the model is not the one that was measured for {KIND}; to measure it run: stretto profile {built.root}",
        f"good: the machine was too busy when this was measured for {KIND}; on a quiet one run: "
        f"stretto profile {built.root}",
    ]
    fast = repository.application("rows").variant("fast")
    assert fast.profile_state(KIND, (KIND,)) is ProfileState.STALE


def test_a_foreign_profile_is_used_with_a_warning(built: Built) -> None:
    for name in ("fast", "good"):
        profile_path(built.variant(name), KIND).unlink()
        built.profile(name, OTHER)
        built.profile(name, "gpu-aaa")
    repository = read_repository(built.root)
    deployment, (warning,) = repository.deployment(1)
    assert deployment.kinds == (OTHER,)  # of the same family as this machine, though gpu-aaa comes first by name
    assert warning == (
        f"{built.root}: these profiles are of machine kind {OTHER}, but this machine is {KIND}: latencies will differ; "
        f"to measure them here run: stretto profile {built.root}"
    )
    assert repository.deployment(1, kind="gpu-aaa")[0].kinds == ("gpu-aaa",)
    fast = repository.application("rows").variant("fast")
    assert fast.profile_state(OTHER, (KIND,)) is ProfileState.FOREIGN
    with pytest.raises(StrettoError, match="has no profile for machine kind 'gpu-aab'; did you mean gpu-aaa"):
        repository.deployment(1, kind="gpu-aab")


def test_kinds_are_never_mixed(built: Built) -> None:
    built.add("large", 0.95, profile=OTHER)
    deployment, (warning,) = read_repository(built.root).deployment(1)
    assert [variant.name for variant in deployment.variants] == ["fast", "good"]
    assert "large: has no profile" in warning


def test_names_that_are_not_there(built: Built) -> None:
    repository, _ = inspect_repository(built.root)
    with pytest.raises(StrettoError, match="has no application 'row'; did you mean rows"):
        repository.application("row")
    with pytest.raises(StrettoError, match="has no variant 'x'; it has fast, good"):
        repository.application("rows").variant("x")


def test_the_hash_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"one")
    first = file_sha256(path)
    path.write_bytes(b"other")
    assert first == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed" != file_sha256(path)
    with pytest.raises(StrettoError, match="cannot be read"):
        file_sha256(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("AMD EPYC 7B13 64-Core Processor", "amd-epyc-7b13"),
        ("AMD Ryzen 7 5800U with Radeon Graphics", "amd-ryzen-7-5800u"),
        ("Apple M2 Pro", "apple-m2-pro"),
        ("NVIDIA H200", "nvidia-h200"),
        ("../../x", "x"),
        ("", "unknown"),
        ("a" * 200, "a" * 48),
    ],
)
def test_names_of_processors_become_plain(name: str, kind: str) -> None:
    assert plain(name) == kind


def test_the_kind_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_kind() == KIND and machine_kind("NVIDIA H200") == "gpu-nvidia-h200"
    monkeypatch.setattr(machine, "accelerators", lambda: ("NVIDIA H200",))
    assert present_kinds() == (KIND, "gpu-nvidia-h200")


def test_the_processor_as_linux_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "CPU_INFORMATION", file)
    for text, name in (
        ("processor\t: 0\nmodel name\t: A Processor\n", "A Processor"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse-N1"),
        ("CPU implementer\t: 0x61\nCPU part\t: 0xd0c\n", "arm-61-d0c"),
        ("CPU implementer\t: x\n", None),
    ):
        file.write_text(text)
        assert machine._from_linux() == name
    file.unlink()
    assert machine._from_linux() is None


def test_accelerators_as_the_driver_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(machine, "GPU_INFORMATION", tmp_path)
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 3\n")
    machine.accelerators.cache_clear()
    assert machine.accelerators() == ("NVIDIA H200",)
    machine.accelerators.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.accelerator_count() == 2
    for named, count in (("1", 1), ("0, 1", 2), ("", 0), ("-1", 0), ("0,7,1", 1), ("GPU-8932f937,MIG-1", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert machine.accelerator_count() == count, named


def test_which_gpu_a_number_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA numbers them for this process: of those that the environment names."""
    monkeypatch.undo()
    monkeypatch.setattr(machine, "GPU_INFORMATION", tmp_path)
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    names = ("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")
    for number, name in enumerate(names[:2]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {name}\nGPU UUID: \t GPU-{number}a\n")
    assert machine.usable_accelerators() == names[:2], "the second of two that are equal is there, too"
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "information").write_text(f"Model: \t\t {names[2]}\nGPU UUID: \t GPU-2a\n")
    assert machine.usable_accelerators() == (None, None, None), "CUDA puts the fastest first, whichever that is"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2,GPU-0a,MIG-1")
    assert machine.usable_accelerators() == ("NVIDIA L4", "NVIDIA H200", None)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,9,0")
    assert machine.usable_accelerators() == ("NVIDIA L4", "NVIDIA H200")


def test_a_padded_profile_is_a_staircase_and_says_so(tmp_path: Path) -> None:
    path = profile_path(tmp_path, KIND)
    write_profile(path, stored(SHA256, padded=True))
    again = read_profile(path)
    assert again.padded and as_json(again)["padded"] is True and "padded" not in as_json(stored(SHA256))
    sizes = sorted(again.batches)
    latency = again.latency_profile()
    for batch in range(1, latency.max_batch + 1):
        rung = min(size for size in sizes if size >= batch)
        assert latency.latency_ns(batch) == latency.latency_ns(rung)


def test_another_precision_is_another_model(built: Built) -> None:
    from dataclasses import replace

    variant = read_repository(built.root).applications[0].variants[0]
    lower = replace(variant, precision="bfloat16")
    assert lower.model_sha256() != variant.model_sha256() == replace(variant).model_sha256()
    assert replace(variant, channels_last=True).model_sha256() not in (variant.model_sha256(), lower.model_sha256())
