"""Responses from bytes, cut anywhere, and what a server must not get away with."""

from __future__ import annotations

import pytest

from stretto.client.errors import BadAnswer
from stretto.client.response import ResponseReader

PLAIN = b"HTTP/1.1 429 X\r\nRetry-After: 1.5\r\nInference-Header-Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("message", [PLAIN, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN])
def test_responses_one_after_the_other(message: bytes, step: int) -> None:
    reader = ResponseReader()
    for _ in range(2):
        assert not reader.has_begun
        parts = [message[place : place + step] for place in range(0, len(message), step)]
        assert [reader.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
        response = reader.take()
        assert response.body == b"abcde" and response.keeps_alive
        if message is not CHUNKED:
            assert (response.status, response.json_length, response.retry_after_s) == (429, 3, 1.5)


def test_a_server_that_closes_says_so() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert not reader.take().keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + bytes(101),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        PLAIN + PLAIN,
        PLAIN + b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000,
    ],
)
def test_what_is_refused(data: bytes) -> None:
    reader = ResponseReader(max_bytes=100)
    with pytest.raises(BadAnswer):
        for place in range(0, len(data), 1000):
            reader.feed(data[place : place + 1000])


@pytest.mark.parametrize("value", [b"soon", b"-1", b"inf"])
def test_a_retry_after_that_is_no_number(value: bytes) -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 429 X\r\nContent-Length: 0\r\nRetry-After: " + value + b"\r\n\r\n")
    assert reader.take().retry_after_s is None
