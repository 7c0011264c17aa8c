"""Answers and errors as bytes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stretto.api.answers import answer
from stretto.api.datatypes import NUMPY_OF
from stretto.api.errors import ApiError, Reason
from stretto.api.http.encode import encode_by_terms, encode_error, encode_response
from stretto.api.messages import InferResponse, OutputTensor, Terms, WantedOutput
from stretto.core.outcome import Outcome
from stretto.live.requests import Request


def response(array: np.ndarray, datatype: str, binary: bool, id: str = "") -> InferResponse:
    return InferResponse("app", "v", id, [OutputTensor("y", datatype, array, binary)], {"variant": "v"})


def length_in(headers: bytes) -> int:
    kind, length = headers.splitlines()
    assert kind == b"content-type: application/octet-stream"
    return int(length.removeprefix(b"inference-header-content-length: "))


@pytest.mark.parametrize("datatype", [name for name in NUMPY_OF if name != "BYTES"])
def test_every_datatype(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0]], NUMPY_OF[datatype])
    body, headers = encode_response(response(array, datatype, False, "one"))
    content = json.loads(body)
    assert content["id"] == "one" and content["model_name"] == "app" and content["model_version"] == "v"
    assert content["outputs"] == [{"name": "y", "datatype": datatype, "shape": [2, 2], "data": array.ravel().tolist()}]
    assert headers == b"content-type: application/json\r\n"
    body, headers = encode_response(response(array, datatype, True))
    length = length_in(headers)
    output = json.loads(body[:length])["outputs"][0]
    assert output["parameters"] == {"binary_data_size": array.nbytes} and "data" not in output
    assert body[length:] == array.tobytes()


def test_strings() -> None:
    array = np.array([[b"a"], ["é".encode()], [b"\xff"]], object)
    body, _ = encode_response(response(array, "BYTES", False))
    assert json.loads(body)["outputs"][0]["data"] == ["a", "é", "�"]
    body, headers = encode_response(response(array, "BYTES", True))
    length = length_in(headers)
    assert body[length:] == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9\x01\0\0\0\xff"


def test_numbers_that_json_has_no_word_for() -> None:
    body, _ = encode_response(response(np.array([[np.nan, np.inf]], np.float32), "FP32", False))
    assert json.loads(body)["outputs"][0]["data"] == [None, None]


@pytest.mark.parametrize("reason", list(Reason))
def test_errors(reason: Reason) -> None:
    status, body, headers = encode_error(ApiError(reason, 'a "quoted"\r\nX: y \ud800 sentence'))
    assert status == reason.http_status
    content = json.loads(body)
    assert content["reason"] == reason.word and content["error"].startswith('a "quoted"\r\nX: y ')
    assert headers == b"content-type: application/json\r\n"


def test_when_to_try_again() -> None:
    for seconds, told in ((0.001, b"1"), (1.4, b"2"), (30.0, b"30")):
        _, _, headers = encode_error(ApiError(Reason.OVERLOADED, "too much", seconds))
        assert headers.splitlines()[1] == b"retry-after: " + told


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "uint8"])
def test_answers_that_are_ready_but_for_their_numbers_say_the_same(dtype: str, is_binary: bool) -> None:
    gives = SimpleNamespace(name='y "%d%%', dtype=dtype)
    wanted = WantedOutput(gives.name, binary=is_binary)
    files: Any = SimpleNamespace(name="app %s", output=gives, labels=())
    terms = Terms(files, "", wanted, 10**9, 0, 0.0)
    for number, (variant, accuracy) in enumerate([("v", 0.1 + 0.2), ("100 %", 1.0), ("v", 0.3), ("v", 0.1 + 0.2)]):
        for rows in (1, 3):
            entered = Request("app", np.zeros((rows, 2), np.float32), 10**9 + number, lambda ended: None)
            for row in range(rows):
                entered.answer(row, np.array([[row, number, 1]]).astype(dtype), variant, accuracy)
            entered.batch, entered.queue_ns, entered.run_ns = 32 + rows, 123_456_789_012 + rows, 7 * number
            entered.end(Outcome.LATE if number == 1 else Outcome.ON_TIME, 2 * 10**9 * number)
            expected, headers = encode_response(answer(entered, files, "", wanted))
            body, same = encode_by_terms(terms, entered)
            length, size = (length_in(same), length_in(headers)) if is_binary else (len(body), len(expected))
            assert body[length:] == expected[size:] and (is_binary or same == headers)
            assert json.loads(body[:length]) == json.loads(expected[:size])
            assert list(json.loads(body[:length])) == list(json.loads(expected[:size]))
    assert len(terms.ready) == 6
