"""The ground of specialists: the zoo's application of sensors and specialists, on a worker fifty times slower.

Queries are two seconds of a watch's movement, and come at random moments, each within 150 ms. *One worker* has the
latencies of `activity_specialists` on a Neoverse-N1 core times SLOWDOWN: `both`, the one variant that knows every
exercise well, takes 19 ms, and a worker answers 52 to 65 queries/s with it; each of the others takes 2 to 3 ms.
*Answers* are real: every query is a labelled sample, and every variant was asked what it is. *Evidence* is the
application's own. Samples that the judge knows are not those that are asked in simulation.

For the live runs `write_slowed` makes a repository whose variants are the zoo's models behind a few lines of Python
(slowed.py beside them), which wait until the slowed time of the batch has passed. So a server of any machine has the
same worker.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.core.application import Application
from stretto.core.deployment import Deployment, with_evidence
from stretto.core.evidence import Said
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.evidence.load import open_evidence
from stretto.repository.application import ApplicationFiles
from stretto.repository.machine import this_machine
from stretto.repository.profiles import MeasuredBatch, StoredProfile, profile_path, write_profile
from stretto.repository.read import read_repository
from stretto.sim.arrivals import ARRIVAL

NAME = "activity_specialists"
PROFILED_ON, KIND = "cpu-aarch64-neoverse-n1-2c", "slowed"
SLOWDOWN = 50.0
SLO_MS = 150.0
LARGEST = 32

SLOWED = '''"""The model beside this file, which takes as long as on a slower machine (benchmarks/specialists.py)."""

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent


class Slowed:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = str(HERE / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._takes_s = [ms / 1000 for ms in json.loads((HERE / "takes_ms.json").read_text())]

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        end = time.perf_counter() + self._takes_s[len(batch)]
        (answers,) = self._session.run(None, {"input": batch})
        time.sleep(max(0.0, end - time.perf_counter()))
        return answers
'''


@dataclass(frozen=True, eq=False)
class Pool:
    """The labelled samples: what evidence says of each, whether each variant answers it right, and its class."""

    theta: NDArray[np.float64]  # [sample, class]
    right: NDArray[np.bool_]  # [variant, sample]
    labels: NDArray[np.int64]
    recall: tuple[float, ...]  # of evidence itself, by class

    def known_to_judge(self) -> Said:
        return Said(self.theta[::2], self.labels[::2], self.recall)

    def asked(self) -> NDArray[np.int64]:
        """Those that come as queries."""
        return np.arange(1, len(self.labels), 2)


def files() -> ApplicationFiles:
    return read_repository(f"zoo:{NAME}").application(NAME)


@cache
def pool() -> Pool:
    application = files()
    sample, evidence = application.sample(), open_evidence(application)
    inputs = np.ascontiguousarray(sample.inputs, np.float32)
    right = []
    for variant in application.variants:
        model = load_model(model_source(application, variant))
        answers = [
            model.run({"input": inputs[at : at + LARGEST]})["probabilities"].argmax(axis=1)
            for at in range(0, len(inputs), LARGEST)
        ]
        model.unload()
        right.append(np.concatenate(answers) == sample.labels)
    return Pool(evidence.posterior(sample.inputs), np.array(right), sample.labels.astype(np.int64), evidence.recall)


@cache
def deployment(has_evidence: bool = True) -> Deployment:
    """One slowed worker; with evidence, accuracies are known by what it says, as a server knows them."""
    measured, _ = read_repository(f"zoo:{NAME}").deployment(1, kind=PROFILED_ON)
    application = measured.applications[0]
    variants = []
    for variant in application.variants:
        mean_ns = np.rint(variant.profiles[0].table_ns[Quantile.MEAN] * SLOWDOWN).astype(np.int64)
        variants.append(
            replace(variant, profiles=(LatencyProfile(np.tile(mean_ns, (len(Quantile), 1)), KIND),), load_ns=0)
        )
    served = Deployment(
        (
            Application(
                NAME,
                int(SLO_MS * NS_PER_MS),
                tuple(variants),
                application.penalty,
                application.classes,
                application.evidence_accuracy if has_evidence else None,
            ),
        ),
        workers(1, KIND),
    )
    return with_evidence(served, {NAME: pool().known_to_judge().theta}) if has_evidence else served


@dataclass(frozen=True, eq=False)
class Traffic:
    """Poisson arrivals; `sample` is which of the samples each query is, and `theta` what evidence says of it."""

    arrivals: NDArray[np.void]
    sample: NDArray[np.int64]
    theta: NDArray[np.float64]
    rate: float
    seconds: float

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        yield self.arrivals

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return (self.rate,)


def traffic(rate: float, queries: int, seed: int, has_evidence: bool = True) -> Traffic:
    random = np.random.default_rng(seed)
    times_ns = np.rint(np.cumsum(random.exponential(1e9 / rate, queries))).astype(np.int64)
    sample = random.choice(pool().asked(), queries)
    theta = pool().theta[sample]
    arrivals = np.zeros(queries, dtype=ARRIVAL)
    arrivals["time_ns"], arrivals["deadline_ns"] = times_ns, times_ns + int(SLO_MS * NS_PER_MS)
    arrivals["client"] = -1
    arrivals["query_class"] = theta.argmax(axis=1) if has_evidence else -1
    return Traffic(arrivals, sample, theta, rate, float(times_ns[-1]) / 1e9)


def right_on_time(queries: NDArray[np.void], asked: Traffic) -> float:
    """The share of all queries that were answered right and on time, by a variant or by evidence itself."""
    known = pool()
    by_evidence = known.theta.argmax(axis=1) == known.labels
    on_time = queries["outcome"] == Outcome.ON_TIME
    variant = queries["variant"]
    right = np.where(variant >= 0, known.right[variant, asked.sample], by_evidence[asked.sample])
    return float((right & on_time).mean())


def write_slowed(folder: Path, has_evidence: bool = True) -> Path:
    """A repository of the slowed worker, for a server on this machine."""
    source, target = files(), folder / NAME
    left_out = ("judged", "profiles") if has_evidence else ("judged", "profiles", "evidence")
    shutil.copytree(source.folder, target, ignore=shutil.ignore_patterns(*left_out))
    settings = (target / "app.toml").read_text()
    (target / "app.toml").write_text(settings.replace("slo_ms = 25", f"slo_ms = {SLO_MS:g}"))
    served = deployment().applications[0]
    for variant in served.variants:
        place = target / "variants" / variant.name
        takes_ms = (variant.profiles[0].table_ns[Quantile.MEAN] / NS_PER_MS).tolist()
        (place / "takes_ms.json").write_text(json.dumps(takes_ms))
        (place / "slowed.py").write_text(SLOWED)
        (place / "variant.toml").write_text('backend = "callable"\ncode = "slowed:Slowed"\n')
    for variant_files in read_repository(target).application(NAME).variants:
        place = target / "variants" / variant_files.name
        takes_ms = json.loads((place / "takes_ms.json").read_text())
        batches = {
            batch: MeasuredBatch(*(takes_ms[batch] * over for over in (1.0, 1.0, 1.005, 1.01)), 100, 0.01)
            for batch in range(1, LARGEST + 1)
        }
        machine, sha256 = this_machine(), variant_files.model_sha256()
        stored = StoredProfile(machine.kind, machine, "callable", 1, sha256, batches, takes_ms[2] - takes_ms[1], 0.0)
        write_profile(profile_path(place, machine.kind), stored)
        measured = json.loads((place / "metrics.json").read_text())  # of the model that it answers by
        (place / "metrics.json").write_text(json.dumps(measured | {"model_sha256": sha256}))
    return target
