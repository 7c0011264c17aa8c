"""Stored profiles: variants/NAME/profiles/KIND.json, what `stretto profile` measured on one kind of machine.

Milliseconds in the file, as everywhere at the edges. Writing the same profile twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from stretto.config.fields import ConfigError, Fields, shown
from stretto.core.application import check_name
from stretto.core.errors import StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT, MAX_LATENCY_MS, LatencyProfile
from stretto.repository.files import Place
from stretto.repository.machine import Machine

VERSION = 1
FIGURES = 6  # significant: a nanosecond in a millisecond, and no noise of the last bits in git
MAX_BYTES = 2**50
MAX_CORES = 1_000_000
MAX_RUNS = 10**12
HASHED_AT_ONCE = 2**20
BATCH_SIZE = re.compile(r"[1-9][0-9]{0,3}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class MeasuredBatch:
    """The latency of one batch size, in ms; `relative_error` is that of the p95 estimate, as a share of it."""

    mean: float
    p50: float
    p95: float
    p99: float
    runs: int
    relative_error: float

    def __post_init__(self) -> None:
        if not all(0 < value <= MAX_LATENCY_MS for value in (self.mean, self.p50, self.p95, self.p99)):
            raise StrettoError("a measured latency is not a time above zero")
        if not self.p50 <= self.p95 <= self.p99:
            raise StrettoError(f"p50, p95 and p99 are {self.p50:g}, {self.p95:g} and {self.p99:g}; they cannot fall")
        if not (0 <= self.runs <= MAX_RUNS and 0 <= self.relative_error <= MAX_LATENCY_MS):
            raise StrettoError("the number of runs and the relative error cannot be negative")

    def points_ms(self) -> dict[str, float]:
        return {"mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99}


@dataclass(frozen=True)
class StoredProfile:
    """One file. `model_sha256` is of the model that was measured; `noisy` says that the machine was too busy."""

    kind: str
    machine: Machine
    backend: str
    threads: int
    model_sha256: str
    batches: Mapping[int, MeasuredBatch]
    alpha_ms: float
    beta_ms: float
    memory_bytes: int = 0
    dynamic_memory_bytes: int = 0
    load_ms: float = 0.0
    noisy: bool = False
    note: str | None = None
    version: int = field(default=VERSION)
    frame_bytes: int = 0  # mean over the sample, at the size sent for this variant and encoded; 0: not measured
    padded: bool = False  # a batch of another size runs as the next larger one of those that were measured
    _made: dict[int, LatencyProfile] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("machine kind", self.kind)
        if not SHA256.fullmatch(self.model_sha256):
            raise StrettoError("model_sha256 must be 64 hexadecimal digits in lower case")
        if not self.batches:
            raise StrettoError("a profile needs at least one batch size")
        if not all(1 <= batch <= MAX_BATCH_LIMIT for batch in self.batches):
            raise StrettoError(f"batch sizes go from 1 to {MAX_BATCH_LIMIT}")
        if self.frame_bytes < 0:
            raise StrettoError("frame_bytes cannot be negative")
        if not (math.isfinite(self.alpha_ms) and math.isfinite(self.beta_ms)):
            raise StrettoError("alpha_ms and beta_ms must be finite")

    def latency_profile(self, max_batch: int | None = None) -> LatencyProfile:
        """l(b) up to the largest batch measured, or less; nothing is made up beyond what was measured."""
        largest = max(self.batches)
        if max_batch is not None:
            largest = min(largest, max_batch)
        if largest not in self._made:  # deployments are made often, and profiles stay
            self._made[largest] = LatencyProfile.measured(
                {batch: point.points_ms() for batch, point in self.batches.items()}, largest, self.kind, self.padded
            )
        return self._made[largest]

    def is_stale(self, model_sha256: str) -> bool:
        """Whether another model was measured than the one that is there now."""
        return self.model_sha256 != model_sha256


def profile_path(variant_folder: Path, kind: str) -> Path:
    """Where the profile of a variant on a kind of machine is kept."""
    check_name("machine kind", kind)
    return variant_folder / "profiles" / f"{kind}.json"


def read_profile(path: Path) -> StoredProfile:
    """One profile by itself; whatever is wrong is told as FILE:LINE."""
    boundary = Path(os.path.realpath(path.parent))
    return profile_at(Place(boundary, path, str(path)))


def profile_at(place: Place) -> StoredProfile:
    """One profile of a repository."""
    top = place.json()
    version = top.integer("version", 1, 10**6)
    if version != VERSION:
        top.fail(f"version is {version}, but this Stretto reads {VERSION}", "version")
    kind = top.text("kind")
    with top.at("kind"):
        check_name("machine kind", kind)
    if place.path.name != f"{kind}.json":
        top.fail(f"kind is {shown(kind)}, but the file is {place.path.name}; the file is named after the kind", "kind")
    sha256 = top.text("model_sha256")
    if not SHA256.fullmatch(sha256):
        top.fail("model_sha256 must be 64 hexadecimal digits in lower case", "model_sha256")
    machine = _machine(top)
    backend = top.text("backend")
    threads = top.integer("threads", 0, MAX_CORES)
    batches = _batches(top)
    alpha_ms = top.number("alpha_ms", -MAX_LATENCY_MS, MAX_LATENCY_MS)
    beta_ms = top.number("beta_ms", -MAX_LATENCY_MS, MAX_LATENCY_MS)
    memory_bytes = top.integer("memory_bytes", 0, MAX_BYTES)
    dynamic_memory_bytes = top.integer("dynamic_memory_bytes", 0, MAX_BYTES)
    load_ms = top.number("load_ms", 0, MAX_LATENCY_MS)
    noisy = top.flag("noisy", False)
    note = top.text("note") if top.has("note") else None
    frame_bytes = top.integer("frame_bytes", 0, MAX_BYTES, 0)
    padded = top.flag("padded", False)
    top.done()
    with top.at():
        return StoredProfile(
            kind,
            machine,
            backend,
            threads,
            sha256,
            batches,
            alpha_ms,
            beta_ms,
            memory_bytes,
            dynamic_memory_bytes,
            load_ms,
            noisy,
            note,
            version,
            frame_bytes,
            padded,
        )


def _machine(top: Fields) -> Machine:
    part = top.part("machine")
    if part is None:
        top.fail("needs machine, with processor, cores and system")
    machine = Machine(
        part.text("processor"),
        part.integer("cores", 1, MAX_CORES),
        part.text("system"),
        part.text("accelerator") if part.has("accelerator") else None,
    )
    part.done()
    return machine


def _batches(top: Fields) -> dict[int, MeasuredBatch]:
    part = top.part("batches")
    if part is None or not part.table:
        top.fail("needs batches, with at least one batch size", "batches")
    batches: dict[int, MeasuredBatch] = {}
    for key in part.table:
        if not BATCH_SIZE.fullmatch(key) or int(key) > MAX_BATCH_LIMIT:
            part.fail(f"{shown(key)} is no batch size; give a whole number from 1 to {MAX_BATCH_LIMIT}", key)
        point = part.part(key)
        assert point is not None
        latencies = {name: point.number(name, 0, MAX_LATENCY_MS, above=True) for name in ("mean", "p50", "p95", "p99")}
        runs = point.integer("runs", 0, MAX_RUNS)
        relative_error = point.number("relative_error", 0, MAX_LATENCY_MS)
        point.done()
        with part.at(key):
            batches[int(key)] = MeasuredBatch(**latencies, runs=runs, relative_error=relative_error)
    return dict(sorted(batches.items()))


def write_profile(path: Path, stored: StoredProfile) -> None:
    """Whole or not at all: a reader never sees half a file. The folder is made where it is missing."""
    if path.name != f"{stored.kind}.json":
        raise StrettoError(f"a profile of kind {stored.kind} is kept in {stored.kind}.json, not in {path.name}")
    text = json.dumps(as_json(stored), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written ({error.strerror or 'output error'})") from None


def as_json(stored: StoredProfile) -> dict[str, Any]:
    """In the order in which a person reads it, with as many figures as mean something."""
    machine: dict[str, Any] = {
        "processor": stored.machine.processor,
        "cores": stored.machine.cores,
        "system": stored.machine.system,
    }
    if stored.machine.accelerator is not None:
        machine["accelerator"] = stored.machine.accelerator
    content: dict[str, Any] = {
        "version": int(stored.version),
        "kind": stored.kind,
        "machine": machine,
        "backend": stored.backend,
        "threads": int(stored.threads),
        "model_sha256": stored.model_sha256,
        "batches": {
            str(int(batch)): {
                **{name: _rounded(value) for name, value in point.points_ms().items()},
                "runs": int(point.runs),
                "relative_error": _rounded(point.relative_error),
            }
            for batch, point in sorted(stored.batches.items())
        },
        "alpha_ms": _rounded(stored.alpha_ms),
        "beta_ms": _rounded(stored.beta_ms),
        "memory_bytes": int(stored.memory_bytes),
        "dynamic_memory_bytes": int(stored.dynamic_memory_bytes),
        "load_ms": _rounded(stored.load_ms),
        "noisy": bool(stored.noisy),
    }
    if stored.padded:
        content["padded"] = True
    if stored.frame_bytes:
        content["frame_bytes"] = int(stored.frame_bytes)
    if stored.note is not None:
        content["note"] = stored.note
    return content


def _rounded(value: float) -> float:
    return float(f"{value:.{FIGURES}g}")


def file_sha256(path: Path) -> str:
    """Of the file as it is now; asked again for an unchanged file, it is not read again."""
    try:
        status = path.stat()
        return _file_sha256(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read ({error.strerror or 'input error'})") from None


@lru_cache(maxsize=4096)
def _file_sha256(path: Path, size: int, changed_ns: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASHED_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()
