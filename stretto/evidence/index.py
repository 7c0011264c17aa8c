"""Nearest neighbours by Faiss: exact (flat), a graph (HNSW), or lists around centres (IVF). Faiss is loaded when asked.

Everything runs on the calling thread alone: an index is built the same each time, and a search never takes cores away
from workers. Searches may run from several threads at once.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError

NEIGHBOURS_LINKED = 16  # HNSW: links of a vector
EFFORT_BUILT = 80  # HNSW: candidates while building
EFFORT_SEARCHED = 32  # HNSW: candidates while searching, at least
LISTS_SEARCHED = 12  # IVF
FEWEST_IN_A_LIST = 40  # Faiss wants about as many to find a centre
TRAINED_ROWS = 20_000  # IVF: to find the centres
TRAINING_ROUNDS = 10
FEW = 5000  # vectors that an exact search looks through in no time

Floats = NDArray[np.float32]


def has_faiss() -> bool:
    """Whether neighbours can be searched here."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def import_faiss() -> Any:
    """StrettoError with the remedy where it is not installed."""
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it tells how it was loaded
    try:
        import faiss
    except ImportError:
        raise StrettoError("nearest neighbours need Faiss; install it with: pip install 'stretto[evidence]'") from None
    return faiss


def likely_index(count: int) -> str:
    """Exact for few vectors. For many, IVF is as quick to search as HNSW and several times quicker to build."""
    return "flat" if count <= FEW else "ivf"


class Index:
    """Vectors, searched by Euclidean distance."""

    def __init__(self, kind: str, vectors: Floats, k: int = 1):
        """`k` is the most neighbours that will be asked for."""
        self._faiss = import_faiss()
        self._faiss.omp_set_num_threads(1)
        self.count, self.dimensions = vectors.shape
        self.kind = kind
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if kind == "flat":
            self._index = self._faiss.IndexFlatL2(self.dimensions)
        elif kind == "hnsw":
            self._index = self._faiss.IndexHNSWFlat(self.dimensions, NEIGHBOURS_LINKED)
            self._index.hnsw.efConstruction = EFFORT_BUILT
            self._index.hnsw.efSearch = max(EFFORT_SEARCHED, 2 * k)
        elif kind == "ivf":
            self._index = self._lists(rows)
        else:
            raise StrettoError(f"there is no index {kind[:40]!r}; there are flat, hnsw, ivf")
        self._index.add(rows)

    def _lists(self, rows: Floats) -> Any:
        lists = max(1, min(round(np.sqrt(self.count)), self.count // FEWEST_IN_A_LIST))
        self._centres = self._faiss.IndexFlatL2(self.dimensions)  # kept: Faiss only points to it
        index = self._faiss.IndexIVFFlat(self._centres, self.dimensions, lists)
        index.cp.niter = TRAINING_ROUNDS
        index.cp.min_points_per_centroid = 1
        index.train(rows[:: max(1, self.count // TRAINED_ROWS)])
        index.nprobe = min(LISTS_SEARCHED, lists)
        return index

    def nearest(self, rows: Floats, k: int) -> NDArray[np.int64]:
        """[queries, k] row numbers, the nearest first; -1 where fewer were found."""
        if rows.shape[1:] != (self.dimensions,):
            raise StrettoError(f"the index has {self.dimensions} dimensions, but the query has {rows.shape[1:]}")
        self._faiss.omp_set_num_threads(1)  # it holds for the calling thread
        _, row_numbers = self._index.search(np.ascontiguousarray(rows, dtype=np.float32), k)
        return np.asarray(row_numbers, np.int64)
