"""The body of an inference as it is put together from whatever pieces it comes in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.api.errors import REASONS, bad_request
from stretto.api.http.app import Asked
from stretto.api.http.exchange import ROOM, SMALL_PART, Direct
from stretto.api.rooms import MOST_BYTES, Rooms
from stretto.core.outcome import Outcome
from stretto.live.requests import Request

SIZES = st.sampled_from([1, 100, SMALL_PART - 1, SMALL_PART, 65_536, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM])


class Answering:
    """A connection that keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.plane = SimpleNamespace(rooms=Rooms(2 * MOST_BYTES))
        self.api = SimpleNamespace(decoded=self.decoded, by_terms=lambda asked, body: None)

    def decoded(self, asked: Asked, body: Any, begun_ns: int, head_bytes: int) -> None:
        self.bodies.append(body)
        raise bad_request("nobody decodes it")

    def waited_ns(self) -> int:
        return 0

    def refuse_exchange(self, exchange: object, error: Exception) -> None: ...


@pytest.mark.parametrize("is_stated", [False, True])
@settings(deadline=None)
@given(st.lists(SIZES, max_size=6), st.integers(0, 255))
def test_bodies_in_pieces(is_stated: bool, sizes: list[int], seed: int) -> None:
    pieces = [bytes([(seed + number) % 256]) * size for number, size in enumerate(sizes)]
    connection, whole = Answering(), b"".join(pieces)
    asked = Asked("app", "", stated=len(whole) if is_stated else 0)
    direct = Direct(connection, asked, True, 0, 0)  # type: ignore[arg-type]
    for piece in pieces:
        direct.came(piece)
    assert direct.came_bytes == len(whole)
    direct.complete()
    assert len(connection.bodies) == 1 and bytes(connection.bodies[0]) == whole


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.is_answer])
@pytest.mark.parametrize("answered", [0, 1])
def test_a_request_that_was_answered_in_part_has_no_answer(outcome: Outcome, answered: int) -> None:
    refused: list[Any] = []
    plane = SimpleNamespace(let_go=lambda entered: None, count_refusal=lambda error: error)
    connection = SimpleNamespace(plane=plane, refuse_exchange=lambda exchange, error: refused.append(error))
    direct = Direct(connection, Asked("app", ""), True, 0, 0)  # type: ignore[arg-type]
    direct.terms = SimpleNamespace()  # type: ignore[assignment]
    entered = Request("app", np.zeros((2, 3), np.float32), 10**9, direct._ended)
    if answered:
        entered.answer(0, np.ones((1, 2), np.float32), "v", 0.5)
    entered.end(outcome, 0)
    (error,) = refused
    assert error.reason is REASONS[outcome]
