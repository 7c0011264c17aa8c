"""Models on probation: in which order they are tried."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stretto.backends.source import ModelSource
from stretto.live.probation import Probation
from stretto.live.shelf import ModelSpec
from stretto.repository.read import zoo_folder
from tests.live.real import ROOT, code

LINEAR = zoo_folder() / "mnist" / "variants" / "linear" / "model.onnx"


def spec_of_code(name: str) -> ModelSpec:
    return ModelSpec(f"code/{name}@1", code(name), "x", "float32", (2,), "y", "float32", (2,), 8)


def spec_of_file(path: Path) -> ModelSpec:
    return ModelSpec(
        "file/v@1", ModelSource("onnx", path), "input", "float32", (1, 28, 28), "probabilities", "float32", (10,), 8
    )


def test_files_are_tried_before_code_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("stretto.live.probation.PATIENCE_S", 60.0)  # one process, however slow the machine is
    ended: list[str] = []

    async def work() -> None:
        probation = Probation(asyncio.get_running_loop(), load_s=60.0)

        async def tried(spec: ModelSpec) -> None:
            verdict = await probation.verdict(spec)
            assert verdict.fault is None, verdict.reason
            ended.append(spec.key)

        try:
            await asyncio.wait_for(
                asyncio.gather(*map(tried, (spec_of_code("double"), spec_of_code("quick"), spec_of_file(LINEAR)))), 60
            )
        finally:
            probation.close()

    asyncio.run(work())
    assert ended == ["file/v@1", "code/double@1", "code/quick@1"]
