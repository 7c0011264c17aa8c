"""SneakPeek served for real: evidence answers what the variants cannot answer in time, and says so."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from stretto.api.metrics import Metrics
from stretto.client import AsyncClient, Expired
from stretto.client.answer import Answer
from stretto.live import lookout
from stretto.repository.read import read_repository
from tests.api.fronting import RunningFronts
from tests.api.serving import Running

pytest.importorskip("faiss", reason="evidence needs Faiss: pip install 'stretto[evidence]'")

REQUESTS, ROWS, DEADLINE_MS = 200, 16, 300.0  # a second and a half of work for one worker


@pytest.mark.parametrize("kind", [Running, RunningFronts])
def test_evidence_answers_what_no_variant_can_answer_in_time(
    kind: type[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a batch may wait a quarter of a second for a processor, and its worker does not hang for that.
    monkeypatch.setattr(lookout, "SUSPICION_NS", 60 * 10**9)
    sample = read_repository("zoo:activity").application("activity").sample()
    assert sample is not None
    with kind("zoo:activity", only=("resnet",), planner="sneakpeek") as server:

        async def ask() -> list[Answer | BaseException]:
            async with AsyncClient(server.url(), grace_ms=20_000) as client:
                asking = (
                    client.infer("activity", np.roll(sample.inputs, -place, 0)[:ROWS], deadline_ms=DEADLINE_MS)
                    for place in range(REQUESTS)
                )
                return await asyncio.gather(*asking, return_exceptions=True)

        ends = asyncio.run(ask())
        answers = [end for end in ends if isinstance(end, Answer)]
        expired = [end for end in ends if isinstance(end, Expired)]  # on a busy machine some are read too late
        assert len(answers) + len(expired) == REQUESTS, ends
        by_evidence = [answer for answer in answers if answer.parameters.get("short_circuit")]
        assert by_evidence, "one worker answered everything, so there was nothing to shorten"
        rows = 0
        for answer in by_evidence:
            posteriors = json.loads(answer.parameters["posterior"])
            assert "evidence" in answer.parameters["variant"].split(",")
            for row, posterior in posteriors.items():
                assert sum(posterior) == pytest.approx(1, abs=1e-4)
                assert np.allclose(answer.output[int(row)], posterior, atol=1e-5)
            rows += len(posteriors)
        for answer in answers:
            assert ("posterior" in answer.parameters) == ("evidence" in answer.parameters["variant"])
        metrics = server.run(Metrics(server.plane).text()).decode()
        assert f'stretto_short_circuited_queries_total{{application="activity"}} {float(rows)}' in metrics
        assert 'stretto_evidence_queries_total{result="computed"}' in metrics
        counted = server.call(lambda: server.service.engine.meters.short_circuited["activity"])
        assert counted == rows and server.missing() == 0
        submitted, ended = server.counts("activity")
        assert submitted >= len(answers) * ROWS and ended["on_time"] + ended["late"] == len(answers) * ROWS
