"""What a server starts before it serves."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from stretto.api.beginning import _factory
from stretto.live.ahead import WorkerAhead
from stretto.live.options import ServiceOptions
from stretto.repository.read import read_repository


@pytest.mark.parametrize(
    ("worker", "backend", "is_ahead"),
    [("cuda:0", "torch", True), ("cuda:0", "onnx", False), ("cpu", "torch", False)],
)
def test_a_worker_starts_ahead_where_it_has_pytorch_to_import_for_a_gpu(
    worker: str, backend: str, is_ahead: bool
) -> None:
    """And is ended where the start fails before anybody asks for it."""
    repository = read_repository("zoo:mnist")
    application = repository.applications[0]
    variants = tuple(replace(variant, backend=backend) for variant in application.variants)
    repository = replace(repository, applications=(replace(application, variants=variants),))
    with ExitStack() as stack:
        factory = _factory(ServiceOptions("zoo:mnist", worker=(worker,)), repository, stack)
        ahead = getattr(factory, "__self__", None)
        assert isinstance(ahead, WorkerAhead) == is_ahead
        process = ahead._started.process if isinstance(ahead, WorkerAhead) and ahead._started is not None else None
        assert (process is not None) == is_ahead
    assert process is None or process.poll() is not None
