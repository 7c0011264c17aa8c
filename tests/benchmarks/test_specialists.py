"""The ground of specialists: the slowed worker is the zoo's, with other latencies, and what is counted is real."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")

from benchmarks import specialists
from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.core.outcome import Outcome
from stretto.core.profile import Quantile
from stretto.repository.read import read_repository

RATE, QUERIES = 120.0, 400


def test_a_slowed_variant_answers_as_the_zoo_s_and_takes_the_time_that_is_simulated(tmp_path: Path) -> None:
    folder = specialists.write_slowed(tmp_path)
    files = read_repository(folder).application(specialists.NAME)
    inputs = np.ascontiguousarray(files.sample().inputs[:8], np.float32)
    simulated = specialists.deployment().applications[0].variants
    for number, name in ((0, "acceleration"), (1, "both")):
        assert simulated[number].name == name
        slowed = load_model(model_source(files, files.variant(name)))
        original = load_model(model_source(specialists.files(), specialists.files().variant(name)))
        (tensor,) = (each.name for each in original.inputs)
        began = time.perf_counter()
        answers = slowed.run({tensor: inputs})[files.output.name]
        took_ms = 1000 * (time.perf_counter() - began)
        np.testing.assert_array_equal(answers, original.run({tensor: inputs})[files.output.name])
        wanted_ms = simulated[number].profiles[0].table_ns[Quantile.MEAN][8] / 1e6
        assert took_ms >= wanted_ms > 3
    served, doubts = read_repository(folder).deployment(1)
    assert not doubts and served.applications[0].slo_ns == specialists.SLO_MS * 1e6
    for ours, theirs in zip(served.variants, simulated, strict=True):
        expected = theirs.profiles[0].table_ns[Quantile.MEAN]
        np.testing.assert_allclose(ours.profiles[0].table_ns[Quantile.MEAN], expected, rtol=1e-4)


def test_without_evidence_there_is_none_in_the_repository_nor_in_the_simulation(tmp_path: Path) -> None:
    files = read_repository(specialists.write_slowed(tmp_path, has_evidence=False)).application(specialists.NAME)
    assert files.stored_evidence is None and files.evidence_accuracy is None
    assert specialists.deployment(has_evidence=False).applications[0].evidence_accuracy is None
    assert (specialists.traffic(RATE, QUERIES, 1, has_evidence=False).arrivals["query_class"] == -1).all()


def test_queries_are_other_samples_than_those_that_the_judge_knows() -> None:
    known, asked = specialists.pool(), specialists.traffic(RATE, QUERIES, 1)
    samples = specialists.files().sample()
    of_judge = {row.tobytes() for row in samples.inputs[::2]}
    assert not of_judge & {samples.inputs[place].tobytes() for place in set(asked.sample.tolist())}
    assert len(known.known_to_judge().labels) + len(known.asked()) == len(known.labels)
    assert QUERIES / asked.seconds == pytest.approx(RATE, rel=0.15)


def test_an_answer_counts_where_that_variant_is_right_about_that_sample_and_in_time() -> None:
    asked = specialists.traffic(RATE, QUERIES, 2)
    known = specialists.pool()
    queries = np.zeros(QUERIES, [("outcome", np.int64), ("variant", np.int64)])
    queries["outcome"], queries["variant"] = Outcome.ON_TIME, np.arange(QUERIES) % 7 - 1
    expected = 0
    for place, variant in enumerate(queries["variant"].tolist()):
        sample = int(asked.sample[place])
        guess = int(known.theta[sample].argmax())
        expected += bool(known.right[variant, sample]) if variant >= 0 else guess == known.labels[sample]
    assert 0 < expected < QUERIES and specialists.right_on_time(queries, asked) == pytest.approx(expected / QUERIES)
    queries["outcome"] = Outcome.LATE
    assert specialists.right_on_time(queries, asked) == 0
    assert specialists.right_on_time(queries, replace(asked, sample=asked.sample[::-1])) == 0


def test_the_load_is_more_than_the_best_variant_carries_and_less_than_the_others_do() -> None:
    """What makes it the paper's regime: accuracy scaling is needed, and there are cheap variants to scale with."""
    for variant in specialists.deployment().applications[0].variants:
        table_ns = variant.profiles[0].table_ns[Quantile.MEAN]
        in_time = [batch for batch in range(1, specialists.LARGEST + 1) if table_ns[batch] < specialists.SLO_MS * 1e6]
        most = max(batch / (table_ns[batch] / 1e9) for batch in in_time)
        assert (most < RATE) == (variant.name == "both"), (variant.name, most)
