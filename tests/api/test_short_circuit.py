"""SneakPeek served for real: evidence answers what the variants cannot answer in time, and says so."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from stretto.client import AsyncClient
from stretto.client.answer import Answer
from stretto.repository.read import read_repository
from tests.api.serving import Running

pytest.importorskip("faiss", reason="evidence needs Faiss: pip install 'stretto[evidence]'")

REQUESTS, DEADLINE_MS = 120, 400.0


def test_evidence_answers_what_no_variant_can_answer_in_time() -> None:
    sample = read_repository("zoo:activity").application("activity").sample()
    assert sample is not None
    with Running("zoo:activity", only=("resnet",), planner="sneakpeek") as server:

        async def ask() -> list[Answer]:
            async with AsyncClient(server.url()) as client:
                server.gate.is_open.clear()  # the one worker is held back for a while, so that it cannot keep up
                asking = [
                    asyncio.create_task(client.infer("activity", row, deadline_ms=DEADLINE_MS))
                    for row in sample.inputs[:REQUESTS]
                ]
                await asyncio.sleep(0.3)
                server.gate.is_open.set()
                return await asyncio.gather(*asking)

        answers = asyncio.run(ask())
        by_evidence = [answer for answer in answers if answer.parameters.get("short_circuit")]
        assert by_evidence, "the worker was held back for most of the deadline, and still answered everything"
        for answer in by_evidence:
            posterior = json.loads(answer.parameters["posterior"])
            assert answer.parameters["variant"] == "evidence" and answer.parameters["run_ms"] == 0
            assert sum(posterior) == pytest.approx(1, abs=1e-4)
            (output,) = answer.outputs.values()
            assert np.allclose(output[0], posterior, atol=1e-5)
        for answer in answers:
            assert ("posterior" in answer.parameters) == (answer.parameters["variant"] == "evidence")
        counted = server.call(lambda: server.service.engine.meters.short_circuited["activity"])
        assert counted == len(by_evidence) and server.missing() == 0
        submitted, ended = server.counts("activity")
        assert submitted == REQUESTS and ended["on_time"] + ended["late"] == REQUESTS
