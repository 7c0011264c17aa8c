"""The zoo's own evidence: there, small, quick to open, and as good as it says."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stretto.evidence.error import measure_errors
from stretto.evidence.load import load_evidence
from stretto.evidence.scores import score_matrix
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository, zoo_folder

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")
NAMES = ("activity", "activity_specialists", "fashion", "fashion_resolution", "mnist")
MAX_BYTES = 4_100_000
MAX_OPEN_S = 5.0  # of processor time


def application(name: str) -> ApplicationFiles:
    return read_repository(f"zoo:{name}").application(name)


@pytest.mark.parametrize("name", NAMES)
def test_each_application_s_evidence_works_on_its_sample(name: str) -> None:
    files = application(name)
    started = time.process_time()
    evidence = load_evidence(files)
    assert evidence is not None and time.process_time() - started < MAX_OPEN_S
    sample = files.sample()
    right = float((evidence.answer(sample.inputs) == sample.labels).mean())
    assert right == pytest.approx(evidence.accuracy, abs=0.08)
    _, scores, profiled = score_matrix(files)
    errors = measure_errors(evidence.witness, sample, (1, 5, evidence.k), evidence.alpha, scores, profiled)
    assert errors.profiled is not None
    assert errors.by_k[evidence.k].error < errors.by_k[5].error < errors.by_k[1].error < errors.profiled
    stored = files.stored_evidence
    assert stored is not None and stored.data.sha256 != stored.held_out.sha256 != stored.measured_on.sha256


def test_it_is_small() -> None:
    files = list(zoo_folder().glob("*/evidence/*"))
    assert len(files) == 2 * len(NAMES) and sum(path.stat().st_size for path in files) < MAX_BYTES


def test_one_query_and_many_give_the_same() -> None:
    evidence = load_evidence(application("mnist"))
    assert evidence is not None
    inputs = application("mnist").sample().inputs[:30]
    alone = np.concatenate([evidence.posterior(inputs[number : number + 1]) for number in range(30)])
    np.testing.assert_allclose(evidence.posterior(inputs), alone, atol=0.03)  # a projection may round otherwise
