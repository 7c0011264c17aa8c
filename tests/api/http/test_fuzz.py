"""Whatever comes over the wire: always a 4xx with a sentence or a closed connection, never a crash, never a hang, and
no harm to good queries that are served at the same time.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.api.serving import (
    INFER,
    PINNED,
    GoodQueries,
    Reply,
    Running,
    Wire,
    binary_body,
    images,
    json_body,
    message,
)

LENGTH = "Inference-Header-Content-Length"
BODY, HEAD_LENGTH = binary_body(images())
HEAD = json.loads(BODY[: int(HEAD_LENGTH)])
RAW = BODY[int(HEAD_LENGTH) :]
PATHS = st.sampled_from([PINNED, INFER, PINNED + "/", INFER + "?x"])
bounded = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", autouse=True)
def beside_good_queries(shared_server: Running) -> Iterator[None]:
    for path in (PINNED, INFER):
        assert shared_server.ask("POST", path, BODY, **{LENGTH: HEAD_LENGTH}).status == 200
    with GoodQueries(shared_server):
        yield


@pytest.fixture(autouse=True)
def alive_after(server: Running, complaints: list[str]) -> Iterator[None]:
    yield
    assert server.ask("GET", "/v2/health/ready").status == 200
    assert not complaints, complaints[0]


@pytest.fixture(scope="module")
def wire(shared_server: Running) -> Iterator[Wire]:
    """One connection for all that is sound HTTP: it must stay usable."""
    with shared_server.wire() as wire:
        yield wire


def assert_refused(reply: Reply) -> None:
    assert reply.status in (400, 404, 405, 413), reply.body
    assert reply.reason in ("bad_request", "not_found")
    assert len(reply.body) < 2000


def assert_sound(reply: Reply) -> None:
    """Refused, or answered because it happened to make sense."""
    if reply.status != 200:
        assert_refused(reply)


def ask(wire: Wire, path: str, body: bytes, **headers: str) -> Reply:
    return wire.ask("POST", path, body, **headers)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["input", "FP32", "BYTES", "probabilities", "cnn_s", "\x00", "a" * 300, 1, 28, [1, 1, 28, 28]]),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.dictionaries(
            st.sampled_from(["name", "datatype", "shape", "data", "parameters", "id"]) | st.text(), inside
        )
    ),
    max_leaves=20,
)
KEYS = ("name", "datatype", "shape", "data", "parameters")


@bounded
@given(PATHS, st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")))
def test_any_body(wire: Wire, path: str, body: bytes) -> None:
    assert_refused(ask(wire, path, body))


@bounded
@given(st.data())
def test_any_value_anywhere(wire: Wire, data: st.DataObject) -> None:
    """A good request with one thing in it replaced."""
    content = json.loads(json_body(images()))
    value = data.draw(JSON)
    where = data.draw(st.sampled_from(["top", "tensor", "parameter", "output", "output parameter"]))
    if where == "top":
        content[data.draw(st.sampled_from(["inputs", "outputs", "parameters", "id"]))] = value
    elif where == "tensor":
        content["inputs"][0][data.draw(st.sampled_from(KEYS))] = value
    elif where == "parameter":
        name = data.draw(
            st.sampled_from(
                ["timeout", "priority", "min_accuracy", "client_id", "binary_data_output", "sequence_id", "x"]
            )
        )
        content["parameters"][name] = value
    elif where == "output":
        content["outputs"] = [{"name": "probabilities", data.draw(st.sampled_from(["name", "parameters"])): value}]
    else:
        name = data.draw(st.sampled_from(["classification", "binary_data", "shared_memory_region", "x"]))
        content["outputs"] = [{"name": "probabilities", "parameters": {name: value}}]
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    assert_sound(ask(wire, data.draw(PATHS), text))


EXTENTS = st.integers(-3, 40) | st.sampled_from([2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30])


@bounded
@given(
    PATHS,
    st.lists(EXTENTS | st.floats() | st.booleans(), max_size=18),
    st.sampled_from(["FP32", "FP64", "FP16", "INT64", "BOOL", "BYTES", "UINT8"]),
    st.integers(-5, 4000) | st.sampled_from([2**31, 2**40, 2**63, -(2**63)]),
    st.binary(max_size=50) | st.just(RAW),
)
def test_any_shape_and_size(wire: Wire, path: str, shape: list[Any], datatype: str, size: int, raw: bytes) -> None:
    tensor = {"name": "input", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    assert_refused(ask(wire, path, head + raw, **{LENGTH: str(len(head))}))
    listed = {"name": "input", "datatype": datatype, "shape": shape, "data": [0.5] * min(abs(size), 4000)}
    assert_refused(ask(wire, path, json.dumps({"inputs": [listed]}).encode()))


@bounded
@given(PATHS, st.sampled_from([b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1e39", b"2", b"-0.1"]))
def test_numbers_beyond_reason(wire: Wire, path: str, number: bytes) -> None:
    body = json_body(images()).replace(b'"data": [', b'"data": [' + number + b", ", 1)
    body = body.replace(b'"shape": [1, 1, 28, 28]', b'"shape": [785]')
    assert_refused(ask(wire, path, body))
    good = json.loads(json_body(images()))
    good["inputs"][0]["data"][5] = 12345.5
    assert_refused(ask(wire, path, json.dumps(good).encode().replace(b"12345.5", number)))


@pytest.mark.parametrize("depth", [10, 100, 1_000, 100_000])
def test_deep_nesting(wire: Wire, depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"inputs":', b"}"), (b'{"inputs":[', b"]}")):
        assert_refused(ask(wire, PINNED, opening * depth + closing * depth))
        assert_refused(ask(wire, PINNED, opening * depth))
    tensor = b'{"inputs":[{"name":"input","datatype":"FP32","shape":[1,1,28,28],"data":'
    assert_refused(ask(wire, PINNED, tensor + b"[" * depth + b"1" + b"]" * depth + b"}]}"))


@bounded
@given(st.integers(0, len(BODY)), st.binary(min_size=1, max_size=4))
def test_damaged_bodies(wire: Wire, place: int, damage: bytes) -> None:
    """Any bytes may be numbers; nothing else may come of it than an answer or a refusal."""
    damaged = BODY[:place] + damage + BODY[place + len(damage) :]
    assert_sound(ask(wire, PINNED, damaged, **{LENGTH: HEAD_LENGTH}))
    assert_refused(
        ask(wire, PINNED, BODY[:place], **{LENGTH: HEAD_LENGTH}) if place < len(BODY) else ask(wire, PINNED, b"")
    )


@bounded
@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=30) | st.integers().map(str))
def test_any_head_length(wire: Wire, value: str) -> None:
    if value.strip() != HEAD_LENGTH:
        with_it = message("POST", PINNED, BODY).replace(b"\r\n\r\n", b"\r\n%s: %s\r\n\r\n", 1)
        with_it = with_it.replace(b"%s: %s", LENGTH.encode() + b": " + value.encode("latin-1"), 1)
        if any(ord(sign) < 32 or ord(sign) == 127 for sign in value):
            return  # no header at all
        wire.send(with_it)
        assert_refused(wire.reply())


# -- compression ---------------------------------------------------------------------------------------------------


@bounded
@given(st.sampled_from(["gzip", "deflate"]), st.integers(0, 3000), st.binary(max_size=10), PATHS)
def test_damaged_compression(wire: Wire, encoding: str, place: int, damage: bytes, path: str) -> None:
    packed = gzip.compress(BODY, mtime=0) if encoding == "gzip" else zlib.compress(BODY)
    headers = {"Content-Encoding": encoding, LENGTH: HEAD_LENGTH}
    assert_refused(ask(wire, path, packed[: min(place, len(packed) - 1)], **headers))
    assert_sound(ask(wire, path, packed[:place] + damage + packed[place + len(damage) :], **headers))
    assert_refused(ask(wire, path, damage, **headers))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", [PINNED, PINNED + "/"])
def test_bombs(wire: Wire, encoding: str, path: str) -> None:
    for content in (bytes(100_000_000), b'{"inputs":' + b"[" * 50_000_000):
        packed = gzip.compress(content, 9, mtime=0) if encoding == "gzip" else zlib.compress(content, 9)
        assert ask(wire, path, packed, **{"Content-Encoding": encoding}).status == 413
    packed = gzip.compress(gzip.compress(bytes(10_000_000)))
    assert_refused(ask(wire, path, packed, **{"Content-Encoding": "gzip, gzip"}))
    assert_refused(ask(wire, path, packed, **{"Content-Encoding": "gzip"}))


# -- the wire itself -----------------------------------------------------------------------------------------------


def outcomes(server: Running, *parts: bytes) -> list[Reply]:
    """What comes back until the connection ends; the client ends its own side, so that nothing waits for more."""
    with server.wire() as wire:
        try:
            for part in parts:
                wire.send(part)
            wire.send(b"GET /v2 HTTP/1.1\r\nConnection: close\r\n\r\n")
        except ConnectionError:
            pass
        wire.socket.settimeout(1.0)
        replies: list[Reply] = []
        try:
            while True:
                replies.append(wire.reply())
        except (EOFError, TimeoutError):
            return replies


def assert_all_sound(replies: list[Reply]) -> None:
    for reply in replies:
        if reply.status == 200 and b"extensions" in reply.body:
            continue
        if reply.status == 100:  # a body was asked for, in the middle of all that
            assert reply is not replies[-1]
            continue
        assert_sound(reply)


MALFORMED = st.sampled_from(
    [
        b"\r\n",
        b"GET ",
        b"POST " + PINNED.encode() + b" HTTP/1.1\r\n",
        b"Content-Length: 10\r\n",
        b"Content-Length: -10\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"a\r\n0123456789\r\n",
        b"ffffffffffffffffff\r\n",
        b"-1\r\n",
        b": \r\n",
        b"\x00",
        b"\xff" * 10,
        b"Host: x\r\n",
        b" HTTP/1.1\r\n",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b"{}",
        b"\n",
    ]
)


EXPECTING = b"POST " + PINNED.encode() + b" HTTP/1.1\r\nExpect: 100-continue\r\n"


@settings(bounded, max_examples=60)
@given(st.binary(min_size=1, max_size=200).map(lambda data: b"\x00" + data))
def test_random_bytes(server: Running, data: bytes) -> None:
    replies = outcomes(server, data)
    assert [reply.status for reply in replies] == [400]
    assert_refused(replies[0])


@settings(bounded, max_examples=60)
@given(st.lists(MALFORMED | st.binary(max_size=10), min_size=1, max_size=12))
@example([EXPECTING, b"\r\n"])
@example([EXPECTING, b"Transfer-Encoding: chunked\r\n\r\n", b"zz"])
def test_pieces_of_http_in_any_order(server: Running, parts: list[bytes]) -> None:
    # Whatever it was, this makes it end: no sound request goes on with a NUL and two empty lines.
    assert_all_sound(outcomes(server, b"".join(parts), b"\r\n\r\n\x00\x00\r\n\r\n\x00"))


def chunked(sizes: list[bytes], path: str = PINNED) -> bytes:
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(sizes)


@settings(bounded, max_examples=60)
@given(PATHS, st.binary(max_size=12).filter(lambda size: size[:1] not in (b";",) and not size[:1].isalnum()))
def test_broken_chunk_sizes(server: Running, path: str, size: bytes) -> None:
    replies = outcomes(server, chunked([b"2\r\n{}\r\n", size + b"\r\nabc\r\n0\r\n\r\n"], path))
    assert_all_sound(replies)
    assert replies


@pytest.mark.parametrize("path", [PINNED, PINNED + "/"])
@pytest.mark.parametrize("size", [1, 2])
def test_chunk_floods(server: Running, path: str, size: int) -> None:
    """Many tiny chunks: the connection ends, whatever they hold; and a body that is too large all the same."""
    many = b"%x\r\n%s\r\n" % (size, b" " * size) * 60_000
    with server.wire() as wire:
        wire.send(chunked([many, b"0\r\n\r\n"], path))
        reply = wire.reply()
        assert_refused(reply)
        assert "chunks" in reply.content["error"] and wire.is_closed()
    with server.wire() as wire:
        wire.send(chunked([b"%x\r\n%s\r\n" % (len(BODY), json_body(images())[: len(BODY)]), b"0\r\n\r\n"], path))
        assert_refused(wire.reply())
    large = b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"
    with server.wire() as wire:
        wire.send(chunked([large] * 60 + [b"0\r\n\r\n"], path))
        assert wire.reply().status == 413
        assert wire.ask("GET", "/v2").status == 200


@pytest.mark.parametrize("count", [100, 5_000])
def test_many_headers(server: Running, count: int) -> None:
    headers = b"".join(b"x-%d: y\r\n" % number for number in range(count))
    replies = outcomes(server, b"GET /v2 HTTP/1.1\r\n" + headers + b"\r\n")
    assert replies[0].status == (200 if count == 100 else 400)


@settings(bounded, max_examples=40)
@given(st.integers(1, 60), st.sampled_from([message("POST", PINNED, b"{}"), chunked([b"2\r\n{}\r\n0\r\n\r\n"])]))
def test_any_split(server: Running, size: int, data: bytes) -> None:
    parts = [data[place : place + size] for place in range(0, len(data), size)]
    assert [reply.status for reply in outcomes(server, *parts)] == [400, 200]


def test_orjson_is_strict(wire: Wire) -> None:
    """What Python's own reader takes, and JSON does not have."""
    for text in ("NaN", "[1,]", "{'a': 1}", '"\\ud800"', "01", "+1", "\ufeff{}", '{"a":1}{"b":2}'):
        assert_refused(ask(wire, PINNED, text.encode("utf-8", "surrogatepass")))
    assert orjson.loads(b"18446744073709551615") == 2**64 - 1
