"""Profiles on a GPU: eager PyTorch against captured CUDA graphs, a set of torchvision architectures, and the zoo.

Weights are random, which changes no latency; the accuracies of torchvision's architectures are those that it publishes.
Needs PyTorch and torchvision with a CUDA device, and nothing else of Stretto's dependencies than numpy. All profiles go
into one file; `--unpack FILE` then puts the zoo's beside their models and the others into the package's data.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
sys.path[:0] = [str(ROOT)]  # also where Stretto is not installed

FILE = "gpu_profiles.json"
BATCHES = (1, 2, 4, 8, 16, 32)
COMPARED = (1, 8, 16)
ARCHITECTURES = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_b2"),
    *("efficientnet_b4", "vgg16", "densenet121", "inception_v3", "convnext_tiny", "vit_b_16"),
)


@dataclass
class Result:
    """The rows and claims of this run; the same file as the other benchmarks write, without their dependencies."""

    device: str
    claims: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def row(self, **values: Any) -> None:
        self.rows.append({key: _rounded(value) for key, value in values.items()})
        print(" · ".join(f"{key} {value}" for key, value in self.rows[-1].items()), flush=True)

    def claim(self, what: str, target: str, ours: float, met: bool) -> None:
        self.claims.append({"what": what, "paper": "—", "target": target, "ours": _rounded(ours), "met": bool(met)})
        print(f"{'met' if met else 'NOT MET'}: {what}: {_rounded(ours)} (target {target})", flush=True)

    def write(self, *folders: Path) -> None:
        content = {
            "name": "gpu_profile",
            "command": "make bench NAME=gpu_profile",
            "seed": 1,
            "machine": f"{self.device}, {platform.machine()}, Python {platform.python_version()}",
            "seconds": round(time.perf_counter() - self.started, 1),
            "claims": self.claims,
            "rows": self.rows,
        }
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            (folder / "gpu_profile.json").write_text(text, encoding="utf-8")


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Candidate:
    """One network to measure: where its profile belongs, how to build it, and what is known of it."""

    group: str  # torchvision, or zoo/APPLICATION
    name: str
    shape: tuple[int, ...]
    build: Any
    accuracy: float | None = None


def architectures() -> Iterator[Candidate]:
    """torchvision's, with the input size and the accuracy on ImageNet that it publishes for its first weights."""
    from torchvision import models

    for name in ARCHITECTURES:
        weights = models.get_model_weights(name).IMAGENET1K_V1
        size = int(weights.transforms.keywords["crop_size"])
        accuracy = round(weights.meta["_metrics"]["ImageNet-1K"]["acc@1"] / 100, 5)
        rest = {"init_weights": False} if name == "inception_v3" else {}
        yield Candidate(
            "torchvision",
            name,
            (3, size, size),
            lambda name=name, rest=rest: models.get_model(name, weights=None, **rest),
            accuracy,
        )


def zoo() -> Iterator[Candidate]:
    """The zoo's networks as they are exported: normalisations folded, probabilities at the end."""
    import torch

    try:
        from training.ladders import LADDERS
        from training.networks import Classifier, Scaled, fold
    except ImportError as error:
        print(f"the zoo's networks cannot be built here ({error.name} is missing): left out", flush=True)
        return
    for application, ladder in LADDERS.items():
        for rung in ladder.rungs:
            file = ROOT / "stretto" / "zoo" / application / "variants" / rung.name / "metrics.json"
            if not file.is_file():
                continue
            shape = tuple(json.loads(file.read_text(encoding="utf-8"))["input_shape"])
            scale = torch.ones(1, shape[0], *(1 for _ in shape[1:]))

            def build(rung: Any = rung, scale: Any = scale) -> Any:
                return Classifier(fold(Scaled(rung.network(), scale)))

            yield Candidate(f"zoo/{application}", rung.name, shape, build)


def built(candidate: Candidate) -> Any:
    """The module, in the host's memory."""
    import torch

    torch.manual_seed(1)
    return candidate.build().eval()


def loaded(candidate: Candidate, module: Any, capture: bool = True, precision: str = "float32") -> Any:
    """On the GPU, with its first answer given."""
    from stretto.backends.model import TensorSpec
    from stretto.backends.torch import TorchModel

    takes = (TensorSpec("input", "float32", candidate.shape),)
    layout = precision != "float32"  # what goes with a lower one
    return TorchModel(
        module, takes, ("output",), candidate.name, "cuda", capture=capture, precision=precision, channels_last=layout
    )


def compare(result: Result, candidate: Candidate, budget_s: float, precision: str) -> None:
    """The same copies and kernels, launched one by one and as one graph, one after the other in one run."""
    from stretto.profiling.variant import latency_of

    found = {}
    for how, capture in (("eager", False), ("captured", True)):
        model = loaded(candidate, built(candidate), capture, precision)
        found[how] = latency_of(model, None, COMPARED, budget_s=budget_s)
        model.unload()
    for batch in COMPARED:
        eager, captured = found["eager"].batches[batch], found["captured"].batches[batch]
        result.row(
            model=candidate.name,
            precision=precision,
            batch=batch,
            eager_p50_ms=eager.p50,
            captured_p50_ms=captured.p50,
            faster=eager.p50 / captured.p50,
            noisy=eager.is_noisy or captured.is_noisy,
        )
    # In float32 batch 8 is no longer bound by launches (1.7 ms of kernels on an H200): the claim is in half precision.
    for batch in (1, 8) if precision == "bfloat16" else ():
        faster = found["eager"].batches[batch].p50 / found["captured"].batches[batch].p50
        what = f"captured CUDA graph against eager, ResNet-50 in {precision}, batch {batch} (times faster, p50)"
        result.claim(what, "≥ 3", faster, faster >= 3)


def profile(result: Result, candidate: Candidate, budget_s: float) -> dict[str, Any]:
    """What is kept of one network: the profile as a repository stores it, and its accuracy where it is known."""
    import torch

    from stretto.backends.source import ModelSource
    from stretto.profiling.memory import MemoryUse
    from stretto.profiling.stored import stored_profile
    from stretto.profiling.variant import Measurement, latency_of
    from stretto.repository.profiles import as_json, file_sha256

    before = torch.cuda.memory_allocated()
    module = built(candidate)
    started = time.perf_counter()
    model = loaded(candidate, module)
    load_ms = (time.perf_counter() - started) * 1e3
    held = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    latency = latency_of(model, None, BATCHES, budget_s=budget_s)
    memory = MemoryUse(held, max(0, torch.cuda.max_memory_allocated() - before - held))
    model.unload()
    file = ROOT / "stretto" / candidate.group / "variants" / candidate.name / "model.onnx"
    sha256 = file_sha256(file) if file.is_file() else hashlib.sha256(candidate.name.encode()).hexdigest()
    stored = stored_profile(Measurement(latency, memory, load_ms), ModelSource("torch", device="cuda"), sha256)
    content: dict[str, Any] = {"profile": as_json(stored)}
    if candidate.accuracy is not None:
        content |= {"accuracy": candidate.accuracy, "accuracy_source": "literature", "input_shape": candidate.shape}
    first, last = latency.batches[BATCHES[0]], latency.batches[BATCHES[-1]]
    result.row(
        model=f"{candidate.group}/{candidate.name}",
        p50_1_ms=first.p50,
        p95_1_ms=first.p95,
        p95_32_ms=last.p95,
        alpha_ms=latency.alpha_ms,
        beta_ms=latency.beta_ms,
        memory_mb=(memory.loaded_bytes + memory.dynamic_bytes) / 1e6,
        noisy=latency.is_noisy,
    )
    return content


def unpack(file: Path) -> None:
    """Puts profiles that came from a GPU machine where they belong in this checkout."""
    content = json.loads(file.read_text(encoding="utf-8"))
    others: dict[str, Any] = {}
    for key, entry in content["profiles"].items():
        group, _, name = key.rpartition("/")
        kind = entry["profile"]["kind"]
        if not group.startswith("zoo/"):
            others.setdefault(f"{group}_{kind}", {})[name] = entry
            continue
        folder = ROOT / "stretto" / group / "variants" / name
        if folder.is_dir():
            _write(folder / "profiles" / f"{kind}.json", entry["profile"])
    for name, entries in others.items():
        _write(ROOT / "stretto" / "data" / f"{name}.json", entries)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    """All of it, within the time given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help=f"folder for {FILE} and for a copy of the result")
    parser.add_argument("--budget-s", type=float, default=4.0, help="seconds of runs for each torchvision network")
    parser.add_argument("--seconds", type=float, default=270.0, help="start nothing new after so many seconds")
    parser.add_argument("--unpack", type=Path, metavar="FILE", help=f"put the profiles of a {FILE} in their places")
    options = parser.parse_args()
    if options.unpack is not None:
        unpack(options.unpack)
        return
    from stretto.core.errors import StrettoError

    try:
        import torch
        import torchvision  # noqa: F401
    except ImportError as error:
        print(
            f"gpu_profile needs PyTorch and torchvision ({error.name} is missing); the committed result stays as it is."
        )
        return
    if not torch.cuda.is_available():
        print("gpu_profile needs a CUDA device, and there is none here; the committed result stays as it is.")
        return
    result = Result(torch.cuda.get_device_name())
    candidates = list(architectures())
    resnet50 = next(each for each in candidates if each.name == "resnet50")
    for precision in ("float32", "bfloat16"):
        compare(result, resnet50, options.budget_s, precision)
    profiles: dict[str, Any] = {}
    left_out: list[str] = []
    folders = [RESULTS] if options.out is None else [RESULTS, options.out]
    for candidate in (*candidates, *zoo()):
        if time.perf_counter() - result.started > options.seconds:
            left_out.append(f"{candidate.name} (no time)")
            continue
        budget_s = options.budget_s if candidate.group == "torchvision" else options.budget_s / 4
        try:
            profiles[f"{candidate.group}/{candidate.name}"] = profile(result, candidate, budget_s)
        except StrettoError as error:  # one network that cannot be captured must not cost the others
            left_out.append(f"{candidate.name} ({error})")
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / FILE).write_text(json.dumps({"profiles": profiles}, indent=1) + "\n", encoding="utf-8")
        result.write(*folders)
    if left_out:
        print(f"left out: {', '.join(left_out)}")


if __name__ == "__main__":
    main()
