"""A measurement as the file that is kept beside the model."""

from __future__ import annotations

from stretto.backends.source import ModelSource
from stretto.profiling.variant import Measurement
from stretto.repository.machine import Machine, this_machine
from stretto.repository.profiles import MeasuredBatch, StoredProfile


def machine_of(device: str) -> Machine:
    """The machine that a model runs on: its GPU, where the device is one."""
    if device == "cpu":
        return this_machine()
    from stretto.backends.torch import check_device, import_torch

    check_device(device)
    return this_machine(str(import_torch().cuda.get_device_name(device)))


def stored_profile(
    measured: Measurement, source: ModelSource, model_sha256: str, kind: str | None = None, frame_bytes: int = 0
) -> StoredProfile:
    """`kind` in place of the machine's own name."""
    machine = machine_of(source.device)
    latency = measured.latency
    return StoredProfile(
        kind or machine.kind,
        machine,
        source.backend,
        source.threads,
        model_sha256,
        {
            batch: MeasuredBatch(
                batch_latency.mean,
                batch_latency.p50,
                batch_latency.p95,
                batch_latency.p99,
                runs=batch_latency.runs,
                relative_error=batch_latency.relative_error,
            )
            for batch, batch_latency in latency.batches.items()
        },
        latency.alpha_ms,
        latency.beta_ms,
        measured.memory.loaded_bytes,
        measured.memory.dynamic_bytes,
        measured.load_ms,
        latency.is_noisy,
        latency.note or None,
        frame_bytes=frame_bytes,
        padded=source.device != "cpu",
    )
