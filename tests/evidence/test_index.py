"""Nearest neighbours: exact search against brute force, approximate indexes against exact search."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.evidence.index import Index, has_faiss, import_faiss, likely_index

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")


def brute_force(vectors: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    """Squared distances of the k nearest, in double precision."""
    distances = np.square(rows[:, None].astype(np.float64) - vectors[None].astype(np.float64)).sum(axis=2)
    return np.sort(distances, axis=1)[:, :k]


def distances_to(vectors: np.ndarray, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
    return np.square(rows[:, None].astype(np.float64) - vectors[found].astype(np.float64)).sum(axis=2)


def clustered(count: int, dimensions: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(99).standard_normal((20, dimensions))
    return (centres[random.integers(20, size=count)] + random.standard_normal((count, dimensions))).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 1000), st.data())
def test_flat_finds_what_brute_force_finds(count: int, dimensions: int, seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, dimensions)).astype(np.float32)
    rows = random.standard_normal((5, dimensions)).astype(np.float32)
    k = data.draw(st.integers(1, count))
    found = Index("flat", vectors, k).nearest(rows, k)
    assert found.shape == (5, k) and all(len(set(row)) == k for row in found.tolist())
    np.testing.assert_allclose(distances_to(vectors, rows, found), brute_force(vectors, rows, k), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("k", [5, 40])
def test_approximate_indexes_find_nearly_all(kind: str, k: int) -> None:
    vectors, rows = clustered(8000, 16, 0), clustered(200, 16, 1)
    exact = Index("flat", vectors, k).nearest(rows, k)
    found = Index(kind, vectors, k).nearest(rows, k)
    shared = np.mean(
        [len(set(one) & set(other)) / k for one, other in zip(found.tolist(), exact.tolist(), strict=True)]
    )
    assert shared >= 0.95


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_the_same_vectors_make_the_same_index(kind: str) -> None:
    vectors, rows = clustered(3000, 8, 2), clustered(100, 8, 3)
    first, second = (Index(kind, vectors, 10).nearest(rows, 10) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
@pytest.mark.parametrize("count", [1, 3, 90])
def test_few_vectors_are_enough(kind: str, count: int) -> None:
    vectors = clustered(count, 4, 4)
    index = Index(kind, vectors, count)
    assert index.nearest(vectors, 1)[:, 0].tolist() == list(range(count))
    more = index.nearest(vectors[:1], count + 2)[0]
    assert set(more[:count]) == set(range(count)) and set(more[count:]) == {-1}


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_a_query_that_is_no_number_finds_no_wrong_row(kind: str) -> None:
    index = Index(kind, clustered(500, 4, 5), 3)
    found = index.nearest(np.full((1, 4), np.nan, np.float32), 3)
    assert found.shape == (1, 3) and found.min() >= -1 and found.max() < 500


def test_searches_from_several_threads_agree() -> None:
    vectors, rows = clustered(5000, 8, 6), clustered(300, 8, 7)
    index = Index("ivf", vectors, 5)
    expected = index.nearest(rows, 5)
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(index.nearest(rows, 5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    for one in found:
        np.testing.assert_array_equal(one, expected)


def test_what_it_refuses() -> None:
    with pytest.raises(StrettoError, match="no index 'lsh'; there are flat, hnsw, ivf"):
        Index("lsh", clustered(10, 4, 0), 1)
    with pytest.raises(StrettoError, match="has 4 dimensions"):
        Index("flat", clustered(10, 4, 0), 1).nearest(clustered(1, 5, 0), 1)


def test_few_vectors_are_searched_exactly() -> None:
    assert (likely_index(5000), likely_index(5001)) == ("flat", "ivf")


def test_without_faiss_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_faiss()
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert not has_faiss()
    with pytest.raises(StrettoError, match=r"pip install 'stretto\[evidence\]'"):
        import_faiss()
