"""The fuzz of benchmarks/fuzz, short and with a fixed seed: nothing is found, and what is wrong would be."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from benchmarks.fuzz.corpus import KINDS, corpus
from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.parsers import ParserFuzz
from benchmarks.fuzz.run import fuzz
from benchmarks.fuzz.server import target
from benchmarks.fuzz.verdict import Findings, responses
from stretto.api.http.app import App, Asked
from stretto.api.messages import InferRequest


def test_thousands_of_inputs_find_nothing() -> None:
    """No 5xx, no exception, no hang, no query without an outcome; good requests are answered between them."""
    findings = asyncio.run(fuzz(5_000, seed=16, socket_share=0.06))
    assert not findings.wrong, findings.kept
    assert findings.total >= 5_000
    assert {kind.partition(",")[0] for kind in findings.inputs} == set(KINDS)
    for status in ("200", "400", "404", "OK", "INVALID_ARGUMENT"):
        assert findings.statuses[status] > 0, "inputs that reach every part of a parser"


def test_a_parser_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = App.decoded

    def failing(self: App, asked: Asked, body: bytes, *rest: int) -> InferRequest:
        if b"someone" in body:
            raise ZeroDivisionError
        return decoded(self, asked, body, *rest)

    async def run() -> Findings:
        async with target() as served:
            return await ParserFuzz(served, seed=1).run(1_000)

    monkeypatch.setattr(App, "decoded", failing)
    findings = asyncio.run(run())
    assert findings.wrong["status 500"] > 0
    assert any(b"someone" in data for _, data in findings.kept)


def test_the_same_seed_gives_the_same_inputs() -> None:
    entries = corpus()
    others = [entry.data for entry in entries]
    first, again = (
        [mutated(random, entry.data, others, entry.kind) for entry in entries] for random in (Random(5), Random(5))
    )
    assert first == again
    changed = sum(before.data != after for before, after in zip(entries, first, strict=True))
    assert changed > 0.9 * len(entries)


def test_answers_are_told_apart() -> None:
    data = (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 400 Bad\r\nContent-Le"
    )
    assert [(status, body) for status, body, _ in responses(data)] == [(200, b"{}")]
    findings = Findings()
    findings.http(504, b'{"reason": "expired"}', b"late")
    assert not findings.wrong
    findings.http(504, b'{"reason": "failed"}', b"broken")
    findings.http(503, b'{"reason": "unavailable"}', b"gone")
    findings.grpc("INTERNAL", b"")
    assert set(findings.wrong) == {"status 504", "status 503", "gRPC INTERNAL"}
