"""Queries from files: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.cli.queries import labelled_file
from stretto.core.errors import StrettoError

QUERIES = np.random.default_rng(0).random((30, 4)).astype(np.float32)
LABELS = QUERIES[:, :3].argmax(axis=1)


def test_files_of_queries(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    np.savez(file, inputs=QUERIES, labels=LABELS)
    inputs, labels = labelled_file(file)
    assert np.array_equal(inputs, QUERIES) and labels is not None and np.array_equal(labels, LABELS)
    np.save(tmp_path / "alone.npy", QUERIES)
    assert labelled_file(tmp_path / "alone.npy")[1] is None
    for name, arrays in {"a": {"x": QUERIES}, "b": {"inputs": QUERIES, "labels": LABELS[:2]}}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(StrettoError, match="inputs"):
            labelled_file(tmp_path / f"{name}.npz")
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npz").write_text("hello")
    for bad in ("pickle.npy", "text.npz", "missing.npz", "."):
        with pytest.raises(StrettoError):
            labelled_file(tmp_path / bad)
