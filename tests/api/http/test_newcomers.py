"""A management listener that is full of silent connections lets newcomers in, and keeps those who showed a token."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stretto.api.descriptors import MANAGEMENT
from tests.api.serving import PATIENCE_S, Running, message

TOKEN = "a token of management"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
BEGINNINGS = {
    "nothing": b"",
    "a part of a request": b"GET /metrics HTTP/1.1\r\nHost: loc",
    "a request for health": message("GET", "/v2/health/live"),
    "a call without a token": message("GET", "/metrics"),
    "a call with a wrong one": message("GET", "/metrics", Authorization="Bearer of something else"),
    "a body that does not come": message("POST", "/v2/repository/index").replace(b"Length: 0", b"Length: 9"),
}


@pytest.fixture(scope="module")
def guarded(repository: Path) -> Iterator[Running]:
    with Running(repository, only=("fashion/linear",), management_token=TOKEN) as running:
        yield running


def crowd(stack: ExitStack, server: Running, beginning: bytes, count: int, source: str = "127.0.0.1") -> None:
    """So many connections from one address, that say so much and then nothing."""
    for _ in range(count):
        made = socket.create_connection(server.address("management"), PATIENCE_S, (source, 0))
        stack.enter_context(closing(made))
        made.sendall(beginning)


def connections_of(server: Running) -> int:
    (traffic,) = [traffic for _, traffic in server.listeners._http if traffic.makes_room]
    return server.call(lambda: len(traffic.connections))


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_silent_connections_without_a_token_keep_nobody_out(guarded: Running, beginning: bytes) -> None:
    """128 of them shut the listener for 76 s, and could come again."""
    with ExitStack() as stack:
        for _ in range(3):
            crowd(stack, guarded, beginning, MANAGEMENT)
            assert guarded.ask("GET", "/metrics", name="management", **AUTHORIZED).status == 200
        assert connections_of(guarded) <= MANAGEMENT


def test_who_showed_a_token_keeps_its_place(guarded: Running) -> None:
    with guarded.wire("management") as wire, ExitStack() as stack:
        assert wire.ask("GET", "/metrics", **AUTHORIZED).status == 200
        crowd(stack, guarded, b"", 2 * MANAGEMENT)
        assert guarded.ask("GET", "/metrics", name="management", **AUTHORIZED).status == 200
        assert wire.ask("GET", "/metrics", **AUTHORIZED).status == 200


def test_who_has_few_connections_keeps_them(guarded: Running) -> None:
    """A scrape over loopback that others cannot push out, though it has been silent for longest."""
    with guarded.wire("management") as wire, ExitStack() as stack:
        assert wire.ask("GET", "/v2/health/live").status == 200
        crowd(stack, guarded, b"", 2 * MANAGEMENT, source="127.0.0.2")
        assert guarded.ask("GET", "/metrics", name="management", **AUTHORIZED).status == 200
        assert wire.ask("GET", "/metrics", **AUTHORIZED).status == 200


def test_where_all_showed_a_token_a_newcomer_is_refused(guarded: Running) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(guarded.wire("management")) for _ in range(MANAGEMENT)]
        for wire in wires:
            assert wire.ask("GET", "/metrics", **AUTHORIZED).status == 200
        with guarded.wire("management") as newcomer:
            assert newcomer.reply().status == 429
        assert all(wire.ask("GET", "/metrics", **AUTHORIZED).status == 200 for wire in wires)


def test_a_listener_without_tokens_lets_newcomers_in(server: Running) -> None:
    with ExitStack() as stack:
        crowd(stack, server, b"", 2 * MANAGEMENT)
        assert server.ask("GET", "/metrics", name="management").status == 200


def test_handshakes_that_do_not_end_keep_nobody_out(repository: Path, certificate: tuple[Path, Path]) -> None:
    """Over TLS they took all places before anybody could show a token."""
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    files = {"certificate": certificate[0], "key": certificate[1]}
    with Running(repository, only=("fashion/linear",), management_token=TOKEN, **files) as server, ExitStack() as stack:
        crowd(stack, server, b"", 2 * MANAGEMENT)
        with server.wire("management", trusting) as wire:
            assert wire.ask("GET", "/metrics", **AUTHORIZED).status == 200
