"""A repository as a whole, and the deployment that it makes: accuracy from its files, latency from its profiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.config.fields import suggestion
from stretto.core.application import Application, Variant
from stretto.core.deployment import MAX_WORKERS, Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, Quantile
from stretto.core.worker import Worker, workers
from stretto.repository.application import ApplicationFiles
from stretto.repository.images import INSTALL, RAW, can_decode
from stretto.repository.machine import accelerators, has_accelerator, present_kinds
from stretto.repository.problems import SHOWN, Problem, Unreadable
from stretto.repository.profiles import StoredProfile
from stretto.repository.sized_accuracy import accuracy_by_size
from stretto.repository.tensors import InputTensor
from stretto.repository.variant import BYTES_PER_MB, VariantFiles


@dataclass(frozen=True)
class Repository:
    """What was read and found sound. `reference` is what the user called it by. What is `unreadable` is among the
    applications only where it was read before, as it was then.
    """

    reference: str
    applications: tuple[ApplicationFiles, ...]
    unreadable: tuple[Unreadable, ...] = ()

    def application(self, name: str) -> ApplicationFiles:
        """RepositoryError where it cannot be read as it is now; StrettoError where there is none of that name."""
        for unreadable in self.unreadable:
            if unreadable.name == name:
                raise unreadable.error()
        for application in self.applications:
            if application.name == name:
                return application
        names = [application.name for application in self.applications]
        raise StrettoError(f"{self.reference} has no application {name[:40]!r}; {suggestion(name, names[:20])}")

    def still_there(self) -> Repository:
        """Without applications of which a model has been removed since it was read, or is being replaced."""
        return replace(self, applications=tuple(each for each in self.applications if is_there(each)))

    def kind_in_use(self, kind: str | None = None) -> str:
        """The kind of machine whose profiles decide: the one asked for, else this machine's, else the likeliest other.

        Profiles of two kinds are never mixed: a GPU's latency beside a processor's would make every choice wrong.
        """
        here = present_kinds()
        counts = Counter(profile.kind for variant in self._enabled() for profile in variant.profiles)
        if kind is not None:
            if kind not in counts and kind not in here:
                known = suggestion(kind, sorted(counts)) if counts else f"run: {self.profile_command(kind)}"
                raise StrettoError(f"{self.reference} has no profile for machine kind {kind[:80]!r}; {known}")
            return kind
        measured_here = [name for name in here if name in counts]
        if measured_here:
            return measured_here[0]
        families = {name.partition("-")[0] for name in here}  # cpu, gpu
        likeliest = sorted(counts, key=lambda name: (name.partition("-")[0] not in families, -counts[name], name))
        return likeliest[0] if likeliest else here[0]

    def kind_profiled(self) -> str:
        """The kind of this machine that was profiled last, as a user means who looks at what a profile has brought."""
        here, written = self.kinds_here(), dict[str, int]()
        for variant in self._enabled():
            for profile in variant.profiles:
                if profile.kind in here:
                    written[profile.kind] = max(written.get(profile.kind, 0), _written_ns(variant, profile.kind))
        return max(written, key=lambda kind: written[kind], default=None) or self.kind_in_use()

    def kinds_here(self) -> tuple[str, ...]:
        """Every kind of worker of this machine: what its system shows, and GPUs that were profiled on it. A container
        may have one that the system does not show.
        """
        profiles = (profile for variant in self._enabled() for profile in variant.profiles)
        here = (each.kind for each in profiles if has_accelerator(each.machine))
        return tuple(dict.fromkeys((*present_kinds(), *here)))

    def doubts(self, kind: str) -> tuple[Problem, ...]:
        """What to tell the user about the profiles of a kind: that they are foreign, missing, stale or noisy."""
        doubts: list[Problem] = []
        here = self.kinds_here()
        if kind not in here and any(variant.profile_on(kind) for variant in self._enabled()):
            doubts.append(
                Problem(
                    f"these profiles are of machine kind {kind}, but this machine is {here[0]}: latencies will differ; "
                    f"to measure them here run: {self.profile_command()}",
                    self.reference,
                    is_error=False,
                )
            )
        for variant in self._enabled():
            doubts += [Problem(text, variant.label, is_error=False) for text in self._doubts(variant, kind)]
        return (*doubts, *self._image_doubts(kind))

    def _image_doubts(self, kind: str) -> list[Problem]:
        """Encodings that are allowed and cannot be read here, and sizes of encoded frames that nobody has measured."""
        doubts: list[Problem] = []
        for application in self.applications:
            encoded = [encoding for encoding in application.input.encodings if encoding != RAW]
            if encoded and not can_decode():
                text = f"{' and '.join(encoded)} cannot be read here, so only raw images are taken; run: {INSTALL}"
                doubts.append(Problem(text, application.label, is_error=False))
            if encoded and not application.input.frame_bytes:
                doubts += self._unmeasured_frames(application, encoded, kind)
        return doubts

    def _unmeasured_frames(self, application: ApplicationFiles, encoded: list[str], kind: str) -> list[Problem]:
        """Plans that take encoded frames for raw numbers map a client to smaller variants than its network carries."""
        profiles = {variant.name: variant.profile_on(kind) for variant in application.variants if variant.enabled}
        unmeasured = [name for name, profile in profiles.items() if profile is not None and not profile.frame_bytes]
        if not unmeasured:
            return []
        sample = "" if application.sample_file is not None else "add a sample, and "
        text = (
            f"the bytes of a frame as {' or '.join(encoded)} were not measured for {', '.join(unmeasured[:SHOWN])}, so "
            f"plans count raw numbers until a client has sent a frame; {sample}run: {self.profile_command(kind)}; or "
            "write frame_bytes into app.toml"
        )
        return [Problem(text, application.label, is_error=False)]

    def _enabled(self) -> list[VariantFiles]:
        return [variant for application in self.applications for variant in application.variants if variant.enabled]

    def _doubts(self, variant: VariantFiles, kind: str) -> list[str]:
        run = f"run: {self.profile_command(kind)}"
        profile = variant.profile_on(kind)
        doubts: list[str] = []
        doubts += self._accuracy_doubts(variant, run)
        if profile is None:
            others = ", ".join(sorted(each.kind for each in variant.profiles)[:5])
            only = f" (only for {others})" if others else ""
            return [*doubts, f"has no profile for machine kind {kind}{only}, so it is left out; {run}"]
        if profile.is_stale(variant.model_sha256()):
            doubts.append(f"the model is not the one that was measured for {kind}; to measure it {run}")
        if profile.noisy:
            doubts.append(f"the machine was too busy when this was measured for {kind}; on a quiet one {run}")
        return doubts

    def _accuracy_doubts(self, variant: VariantFiles, run: str) -> list[str]:
        metrics = variant.metrics
        if metrics is None:
            left_out = (
                f"its accuracy is not known, so it is left out; state it in variant.toml, or {run} --data FILE.npz"
            )
            return [] if variant.has_accuracy else [left_out]
        if variant.is_measured:
            return []
        why, measure = variant.unmeasured, f"to measure it {run} --data FILE.npz"
        if variant.has_accuracy:
            return [f"the accuracy stated in variant.toml counts, for {why}; {measure}"]
        of_before = "answers state none, and plans go on by the figure in metrics.json"
        return [f"its accuracy is not known, for {why}; {of_before}; {measure}"]

    def profile_command(self, kind: str = "") -> str:
        """What to type to measure this repository here, on a kind of machine. The zoo is part of Stretto, so a copy of
        it is measured.
        """
        is_zoo, is_gpu = self.reference.partition(":")[0] == "zoo", kind.startswith("gpu-")
        return f"stretto profile {self.reference}{' --out models' * is_zoo}{' --device cuda' * is_gpu}"

    def kind_for(self, device: str, kind: str | None = None) -> str:
        """The kind of machine whose profiles decide for workers on a device: the one asked for, else the device's."""
        if kind is not None or (device.partition(":")[0] == "cpu" and not accelerators()):
            return self.kind_in_use(kind)
        counts = Counter(profile.kind for variant in self._enabled() for profile in variant.profiles)
        family = "cpu" if device.partition(":")[0] == "cpu" else "gpu"
        here = [name for name in present_kinds() if name.partition("-")[0] == family]
        measured = [name for name in here if name in counts]
        other = sorted(
            (name for name in counts if name.partition("-")[0] == family), key=lambda name: (-counts[name], name)
        )
        return (measured or other or here or [self.kind_in_use()])[0]

    def deployment(
        self,
        fleet: int | Sequence[Worker],
        quantile: Quantile = Quantile.P95,
        *,
        kind: str | None = None,
    ) -> tuple[Deployment, tuple[str, ...]]:
        """On these workers, or on so many equal ones of one kind; and the sentences to tell the user about the profiles
        that all rests on.

        A variant without a profile for any kind in use, without any figure of its accuracy, or too large for every
        worker, is left out, and so is an application that has none left; StrettoError where that is all of them.
        """
        if isinstance(fleet, int):
            if not 1 <= fleet <= MAX_WORKERS:
                raise StrettoError(f"there must be between 1 and {MAX_WORKERS} workers, not {fleet}")
            fleet = workers(fleet, self.kind_in_use(kind))
        kinds = tuple(dict.fromkeys(worker.kind for worker in fleet))
        applications, too_large, refused = [], [], []
        for files in self.applications:
            try:
                application, without = _fitting(files, self._application(files, kinds), fleet)
            except StrettoError as error:
                refused.append(str(error))
                continue
            applications.append(application)
            too_large += without
        if not applications:
            raise StrettoError("\n".join(refused) or f"{self.reference}: there is nothing to deploy")
        deployment = Deployment(tuple(applications), tuple(fleet), quantile)
        doubts = [doubt for each in kinds for doubt in self.doubts(each)]
        unreadable = [f"{each.label} is left out: {each.reason}" for each in self.unreadable]
        told = (*unreadable, *refused, *(str(doubt) for doubt in (*doubts, *too_large)))
        return deployment, tuple(dict.fromkeys(told))

    def left_out(self, deployed: Collection[str], kinds: Sequence[str]) -> dict[str, str]:
        """Why variants that are enabled are not among those that are deployed on workers of these kinds; all by
        APPLICATION/VARIANT.
        """
        return {
            label: self._why_left_out(variant, kinds)
            for files in self.applications
            for variant in files.variants
            if variant.enabled and (label := f"{files.name}/{variant.name}") not in deployed
        }

    def _why_left_out(self, variant: VariantFiles, kinds: Sequence[str]) -> str:
        run = f"run {self.profile_command(kinds[0])}"
        if not any(variant.profile_on(kind) for kind in kinds):
            return f"no profile for machine kind {' or '.join(kinds)}; {run}"
        if not variant.has_rank:
            return f"its accuracy is not known; state it in variant.toml, or {run} --data FILE.npz"
        return "no worker has memory for it, or runs it"

    def _application(self, files: ApplicationFiles, kinds: tuple[str, ...]) -> Application:
        enabled = [variant for variant in files.variants if variant.enabled]
        if not enabled:
            raise StrettoError(f"{files.label}: no variant is enabled; enable one in its variant.toml")
        profiles = {
            variant.name: [profile for kind in kinds if (profile := variant.profile_on(kind)) is not None]
            for variant in enabled
        }
        variants = tuple(
            core_variant(files, variant, profiles[variant.name])
            for variant in enabled
            if variant.has_rank and profiles[variant.name]
        )
        if not variants:
            if any(profiles.values()):
                raise StrettoError(
                    f"{files.label}: no variant with a profile has an accuracy; state it in variant.toml, or "
                    f"run: {self.profile_command(kinds[0])} --data FILE.npz"
                )
            raise StrettoError(
                f"{files.label}: no variant has a profile for machine kind {' or '.join(kinds)}; "
                f"run: {self.profile_command(kinds[0])}"
            )
        slo_ns = max(1, round(files.slo_ms * NS_PER_MS))
        return Application(
            files.name,
            slo_ns,
            variants,
            files.penalty,
            files.classes,
            files.evidence_accuracy,
            files.ladder,
            has_evidence=files.has_evidence,
        )


def _fitting(
    files: ApplicationFiles, application: Application, fleet: Sequence[Worker]
) -> tuple[Application, list[Problem]]:
    """With those variants that some worker has memory for, and what to tell of the others."""
    room: dict[str, int] = {}
    for worker in fleet:
        room[worker.kind] = max(room.get(worker.kind, 0), worker.memory_bytes)
    fitting, problems = [], []
    for variant in application.variants:
        needs = variant.memory_bytes + variant.dynamic_memory_bytes
        most = max(room[profile.kind] for profile in variant.profiles)
        if needs <= most:
            fitting.append(variant)
            continue
        text = (
            f"needs {needs / BYTES_PER_MB:.3g} MB with a batch, and no worker has more than {most / BYTES_PER_MB:.3g}"
        )
        problems.append(Problem(f"it {text}, so it is left out", files.variant(variant.name).label, is_error=False))
    if not fitting:
        least = min(each.memory_bytes + each.dynamic_memory_bytes for each in application.variants)
        raise StrettoError(
            f"{files.label}: no worker has memory for any variant; the smallest needs {least / BYTES_PER_MB:.3g} MB"
        )
    return replace(application, variants=tuple(fitting)), problems


def core_variant(files: ApplicationFiles, variant: VariantFiles, profiles: Sequence[StoredProfile]) -> Variant:
    """What variant.toml states goes before what was measured; of several kinds of worker the largest need counts."""
    load_ms = max(profile.load_ms for profile in profiles) if variant.load_ms is None else variant.load_ms
    most = min(files.limits.max_batch, variant.max_batch or files.limits.max_batch)
    needs = max(profile.memory_bytes for profile in profiles)
    return Variant(
        variant.name,
        variant.accuracy,
        tuple(profile.latency_profile(most) for profile in profiles),
        memory_bytes=needs if variant.memory_bytes is None else variant.memory_bytes,
        dynamic_memory_bytes=max(profile.dynamic_memory_bytes for profile in profiles),
        load_ns=round(load_ms * NS_PER_MS),
        recall=() if variant.metrics is None else variant.metrics.recall,
        input_size=variant.input_shape,
        frame_bytes=_frame_bytes(files.input, variant, profiles),
        accuracy_by_size=tuple(
            ((*variant.input_shape[:-2], *size), accuracy)
            for size, accuracy in accuracy_by_size(files, variant).items()
        ),
        has_accuracy=variant.has_accuracy,
    )


def is_there(files: ApplicationFiles) -> bool:
    """None of its models was removed since it was read."""
    try:
        return all(variant.model_sha256() for variant in files.variants)
    except (StrettoError, OSError):
        return False


def _written_ns(variant: VariantFiles, kind: str) -> int:
    try:
        return variant.profile_path(kind).stat().st_mtime_ns
    except OSError:  # it went meanwhile
        return 0


def _frame_bytes(takes: InputTensor, variant: VariantFiles, profiles: Sequence[StoredProfile]) -> int:
    """Of one query as a client sends it for this variant: as app.toml says, else as measured, else of raw numbers."""
    sent = takes.shape_for(variant.input_shape)
    if takes.frame_bytes:
        return takes.frame_bytes[takes.shapes.index(sent)]
    measured = max(profile.frame_bytes for profile in profiles)
    return measured or np.dtype(takes.dtype).itemsize * math.prod(sent)
