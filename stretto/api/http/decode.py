"""Bytes of a request into an InferRequest: JSON, or JSON with raw tensors behind it. Bad input is a 400."""

from __future__ import annotations

import base64
import binascii
import math
from array import array as packed
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from stretto.api.datatypes import numpy_dtype, parse_bytes
from stretto.api.errors import ApiError, bad_request, too_large
from stretto.api.http.repeated import LONG_TEXT, Repeated
from stretto.api.limits import Limits
from stretto.api.messages import Array, InferRequest, InputTensor, Span, Terms, WantedOutput
from stretto.api.network import NAMES as NETWORK_NAMES
from stretto.api.numerals import numbers_in
from stretto.api.shared_memory import placeholder, span_in

MAX_KNOWN = 1024  # JSON parts remembered
MAX_KNOWN_BYTES = 2048  # of each
MAX_ELEMENTS = 2**40  # far beyond any body, far below what would overflow
DATA = b'"data"'
SPARE_PARTS = 10_000  # of a long JSON text, besides two for each value of the input


@dataclass(slots=True)
class _Entry:
    """One input as the JSON part tells it; `size` is None where its data stands there too."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    elements: int
    size: int | None
    data: Any
    encoding: str
    shared: Span | None = None


@dataclass(slots=True)
class Head:
    """The JSON part of a request, checked. Several requests may share it: nobody changes it, but for the terms that
    were found out by one of them.

    `binary`: all outputs are wanted as raw tensors, and none was named.
    """

    entries: list[_Entry]
    raw_bytes: int
    id: str
    parameters: dict[str, Any]
    outputs: list[WantedOutput]
    binary: bool
    terms: Terms | None = None


Key = tuple[str, str, bytes]  # application, version, and what was said


class Decoder:
    """Remembers the JSON parts that come again and again: a client that sends raw tensors repeats its own, and one that
    sends numbers what stands around them.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._known: dict[Key, Head] = {}
        self._frames: dict[Key, Head] = {}
        self._binary: dict[str, list[WantedOutput]] = {}  # a whole output as a raw tensor, by the output's name

    def request(
        self,
        body: bytes | memoryview,
        header_length: bytes | None,
        application: str,
        version: str,
        only_output: str,
        max_elements: int = MAX_ELEMENTS,
    ) -> InferRequest:
        """`header_length` is the value of Inference-Header-Content-Length, where it was sent.

        `max_elements` bounds what is taken apart one by one, numbers in JSON and strings; raw numbers cost nothing.
        """
        rest: bytes | memoryview = b""
        if header_length is None:
            text = bytes(body)
            frame, numbers = _without_numbers(text)
            key = application, version, frame
            known = self._frames.get(key)
            if known is not None:
                array = _numbers(known, text, numbers, max_elements)
                if array is not None:
                    return self._with_input(known, array, application, version, only_output)
            if len(text) > LONG_TEXT:
                _check_parts(text, max_elements)
            head = read_head(text, self._limits)
            self._remember(key, head)
        else:
            length = _length(header_length, len(body))
            if length > self._limits.header_json_bytes:
                raise too_large(f"the JSON part may have {self._limits.header_json_bytes} bytes, not {length}")
            text = bytes(body[:length])
            if length > LONG_TEXT:
                _check_parts(text, max_elements)
            # A short tensor is copied, for then its numbers are aligned; the memory of a long one was made so.
            rest = body[length:] if len(body) <= LONG_TEXT else memoryview(body)[length:]
            head = self._head((application, version, text))
        if len(rest) != head.raw_bytes:
            raise bad_request(f"the raw tensors have {len(rest)} bytes, but the inputs say {head.raw_bytes}")
        inputs: list[InputTensor] = []
        place = 0
        for entry in head.entries:
            if (entry.size is None or entry.datatype == "BYTES") and entry.elements > max_elements:
                raise too_large(f"input {entry.name} may have {max_elements} values, not {entry.elements}")
            if entry.shared is not None:
                array = placeholder(entry.datatype, entry.shape)
            elif entry.size is None:
                array = _listed(entry, self._limits.dimensions, b"true" in text or b"false" in text)
                if entry.encoding and entry.datatype == "BYTES":
                    array = _from_base64(array, entry)
            else:
                array = _raw(rest[place : place + entry.size], entry)
                place += entry.size
            inputs.append(InputTensor(entry.name, entry.datatype, array, entry.encoding, entry.shared))
        outputs = self._outputs(head, only_output)
        form = head if _is_plain(head) else None
        return InferRequest(application, inputs, version, head.id, outputs, head.parameters, form=form)

    def repeated(
        self, body: bytes | memoryview, json_bytes: int, application: str, version: str, max_elements: int
    ) -> Repeated | None:
        """What an earlier request said that said the same; None where this one must be read as a whole. `json_bytes`
        stand before raw tensors; 0: the numbers are in JSON.
        """
        if json_bytes:
            before, after = bytes(body[:json_bytes]), b""
            head = self._known.get((application, version, before))
        else:
            text = bytes(body)
            frame, (start, end) = _without_numbers(text)
            before, after = text[:start], text[end:]
            head = self._frames.get((application, version, frame))
        if head is None or head.terms is None or head.entries[0].elements > max_elements:
            return None
        entry = head.entries[0]
        return Repeated(head.terms, before, after, entry.dtype, entry.shape, entry.elements, head.raw_bytes)

    def _with_input(self, head: Head, array: Array, application: str, version: str, only_output: str) -> InferRequest:
        """Of a frame that is known, with the numbers that it came with."""
        entry = head.entries[0]
        tensor = InputTensor(entry.name, entry.datatype, array.reshape(entry.shape), entry.encoding)
        outputs = self._outputs(head, only_output)
        return InferRequest(application, [tensor], version, head.id, outputs, head.parameters, form=head)

    def _outputs(self, head: Head, only_output: str) -> list[WantedOutput]:
        """As with parameters, several requests may share them."""
        if not head.binary:
            return head.outputs
        outputs = self._binary.get(only_output)
        if outputs is None:
            outputs = self._binary[only_output] = [WantedOutput(only_output, 0, True)]
        return outputs

    def _remember(self, key: Key, head: Head) -> None:
        """What stands around the numbers of a request: a client repeats that, too. Only where no other reading of it is
        possible: one input of float32, whose list is the one that is left out.
        """
        frame = key[2]
        if not frame or not self._may_be_kept(key) or len(head.entries) != 1 or _varies(head):
            return
        if head.entries[0].datatype != "FP32" or frame.count(DATA) != 1:
            return
        try:
            empty = read_head(frame, self._limits)
        except ApiError:  # lists within the list
            return
        if empty.entries[0].data == [] and empty.entries[0].size is None:
            if len(self._frames) >= MAX_KNOWN:
                self._frames.clear()
            self._frames[key] = empty

    def _may_be_kept(self, key: Key) -> bool:
        """A client chooses its version, too."""
        return len(key[2]) <= MAX_KNOWN_BYTES and len(key[1]) <= self._limits.name_length

    def _head(self, key: Key) -> Head:
        known = self._known.get(key)
        if known is not None:
            return known
        head = read_head(key[2], self._limits)
        can_repeat = not _varies(head) and all(entry.size is not None for entry in head.entries)
        if can_repeat and self._may_be_kept(key):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = head
        return head


def _varies(head: Head) -> bool:
    """It says what is of one request alone."""
    return bool(head.id) or not NETWORK_NAMES.isdisjoint(head.parameters)


def _is_plain(head: Head) -> bool:
    """One tensor of numbers, which follow it."""
    entry = head.entries[0]
    has_numbers = entry.size is not None and entry.shared is None and entry.datatype not in ("BYTES", "BOOL")
    return len(head.entries) == 1 and has_numbers and not entry.encoding


def _numbers(head: Head, text: bytes, place: tuple[int, int], max_elements: int) -> Array | None:
    """As many as the one input of a head has; None where these are others."""
    elements = head.entries[0].elements
    array = numbers_in(text, *place, min(elements, max_elements))
    return array if array is not None and array.size == elements else None


def _without_numbers(text: bytes) -> tuple[bytes, tuple[int, int]]:
    """The text with its first list of data left empty, and where that list was; nothing where there is none."""
    start = text.find(DATA) + len(DATA)
    if start >= len(DATA) and len(text) <= LONG_TEXT:
        start += 3 if text.startswith(b": [", start) else 2  # as most libraries write it, with a space or without
        end = text.find(b"]", start)
        if end >= 0 and text.startswith(b"[", start - 1):
            return text[:start] + text[end:], (start, end)
    return b"", (0, 0)


def _check_parts(text: bytes, max_elements: int) -> None:
    """Hundreds of thousands of empty lists would keep everybody waiting while they are read."""
    if sum(text.count(sign) for sign in (b",", b"[", b"{")) > 2 * max_elements + SPARE_PARTS:
        raise too_large("the JSON part holds more values than this application can use")


def read_head(text: bytes | memoryview, limits: Limits) -> Head:
    """The JSON part of a request; a 400 with a sentence where it makes no sense."""
    content = parse_json(text)
    entries = _entries(content.get("inputs"), limits)
    parameters = _parameters(content.get("parameters"), limits, "the request")
    identity = content.get("id", "")
    if not isinstance(identity, str) or len(identity) > limits.id_length:
        raise bad_request(f"id must be a string of at most {limits.id_length} characters")
    all_binary = bool(parameters) and parameters.pop("binary_data_output", False) is True
    outputs = [] if content.get("outputs") is None else _outputs(content["outputs"], limits, all_binary)
    raw_bytes = sum([entry.size or 0 for entry in entries])
    return Head(entries, raw_bytes, identity, parameters, outputs, all_binary and not outputs)


def parse_json(head: memoryview | bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(head)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is no sound JSON: {str(error)[:120]}") from None
    if not isinstance(content, dict):
        raise bad_request("the body must be a JSON object")
    return content


def _length(value: bytes, available: int) -> int:
    if not value.isdigit() or len(value) > 12:
        raise bad_request("Inference-Header-Content-Length must be a whole number")
    length = int(value)
    if length > available:
        raise bad_request(f"Inference-Header-Content-Length is {length}, but the body has {available} bytes")
    return length


def _entries(entries: Any, limits: Limits) -> list[_Entry]:
    if not isinstance(entries, list) or not entries:
        raise bad_request("inputs must be a list of at least one tensor")
    if len(entries) > limits.tensors:
        raise bad_request(f"a request may have {limits.tensors} inputs, not {len(entries)}")
    return [_entry(entry, limits) for entry in entries]


def _entry(entry: Any, limits: Limits) -> _Entry:
    if not isinstance(entry, dict):
        raise bad_request("every input must be an object with name, datatype, shape and data")
    name = _name(entry.get("name"), limits, "an input")
    datatype = entry.get("datatype")
    if not isinstance(datatype, str):
        raise bad_request(f"input {name} needs a datatype, as FP32")
    dtype = numpy_dtype(datatype, name)
    shape, elements = _shape(entry.get("shape"), name, limits)
    size, encoding, shared = None, "", None
    if "parameters" in entry:
        parameters = _parameters(entry["parameters"], limits, f"input {name}")
        size = parameters.get("binary_data_size")
        encoding = parameters.get("encoding", "")
        if not isinstance(encoding, str) or len(encoding) > limits.name_length:
            raise bad_request(f'encoding of input {name} must be a word, as "png"')
        shared = span_in(parameters, name)
    if shared is not None:
        if size is not None or "data" in entry:
            raise bad_request(f"input {name} is in shared memory, and has data or binary_data_size besides; give one")
        size = 0  # of what follows the JSON part
    elif size is not None:
        if "data" in entry:
            raise bad_request(f"input {name} has both data and binary_data_size; give one")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_ELEMENTS:
            raise bad_request(f"binary_data_size of input {name} must be a whole number of bytes")
    return _Entry(name, datatype, dtype, shape, elements, size, entry.get("data"), encoding, shared)


def _name(value: Any, limits: Limits, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= limits.name_length or not value.isprintable():
        raise bad_request(f"{what} needs a name of at most {limits.name_length} printable characters")
    return value


def _shape(value: Any, name: str, limits: Limits) -> tuple[tuple[int, ...], int]:
    if not isinstance(value, list) or not 0 < len(value) <= limits.dimensions:
        raise bad_request(f"input {name} needs a shape of 1 to {limits.dimensions} sizes")
    for size in value:
        if type(size) is not int or size < 0:
            raise bad_request(f"the shape of input {name} must hold whole numbers from 0")
    elements = math.prod(value)
    # numpy counts without the zeros, even where there are no elements
    if elements > MAX_ELEMENTS or (not elements and math.prod(filter(None, value)) > MAX_ELEMENTS):
        raise too_large(f"input {name} is too large")
    return tuple(value), elements


def _raw(data: bytes | memoryview, entry: _Entry) -> Array:
    if entry.datatype == "BYTES":
        return parse_bytes(data, entry.elements, entry.name).reshape(entry.shape)
    needs = entry.elements * entry.dtype.itemsize
    if len(data) != needs:
        raise bad_request(f"input {entry.name} of shape {list(entry.shape)} needs {needs} bytes, and has {len(data)}")
    array = np.frombuffer(data, entry.dtype).reshape(entry.shape)
    if entry.datatype == "BOOL" and (array.view(np.uint8) > 1).any():
        raise bad_request(f"input {entry.name} is BOOL and must hold bytes 0 and 1")
    return array


# What JSON's values are put together as: numpy itself would take texts too, and make each as long as the longest.
CODES = {
    **{"BOOL": "b", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
}


def _listed(entry: _Entry, dimensions: int, has_words: bool) -> Array:
    """`has_words`: there may be a true or a false among the values, which are no numbers."""
    data, datatype, name = entry.data, entry.datatype, entry.name
    if not isinstance(data, list):
        raise bad_request(f"input {name} needs data, a list, or binary_data_size")
    if datatype == "FP16":
        raise bad_request(f"input {name} is FP16, which JSON cannot hold; send it as binary data")
    if datatype == "BYTES":
        return _strings(data, entry.shape, entry.elements, dimensions, name)
    flat = _flat(data, entry.shape, entry.elements, dimensions, name)
    is_bool = datatype == "BOOL"
    try:
        if (is_bool and {*map(type, flat)} - {bool}) or (has_words and not is_bool and bool in map(type, flat)):
            raise TypeError
        values = packed(CODES[datatype], flat)
    except TypeError:
        raise bad_request(f"the data of input {name} must be {datatype} values") from None
    except OverflowError:
        raise bad_request(f"the data of input {name} goes beyond {datatype}") from None
    return np.frombuffer(values, entry.dtype).reshape(entry.shape)  # what became infinite is refused by the data plane


def _flat(data: list[Any], shape: Any, elements: int, dimensions: int, name: str) -> list[Any]:
    """The values of lists of lists …, which must be even; row by row."""
    for _ in range(dimensions - 1):
        if not data or not isinstance(data[0], list):
            break
        if any(type(part) is not list or len(part) != len(data[0]) for part in data):
            raise bad_request(f"the data of input {name} is ragged")
        data = list(chain.from_iterable(data))
    if len(data) != elements:
        raise bad_request(f"input {name} of shape {list(shape)} needs {elements} values, and has {len(data)}")
    return data


def _strings(data: list[Any], shape: Any, elements: int, dimensions: int, name: str) -> Array:
    flat = _flat(data, shape, elements, dimensions, name)
    if not {str}.issuperset(map(type, flat)):
        raise bad_request(f"the data of input {name} must be strings")
    array = np.empty(elements, object)
    array[:] = [text.encode("utf-8", "surrogatepass") for text in flat]
    return array.reshape(shape)


def _from_base64(array: Array, entry: _Entry) -> Array:
    """Encoded images within JSON, which cannot hold bytes."""
    images = np.empty(array.size, object)
    try:
        images[:] = [base64.b64decode(text, validate=True) for text in array.flat]
    except binascii.Error:
        raise bad_request(f"images of input {entry.name} within JSON must be base64; or send binary data") from None
    return images.reshape(array.shape)


def _outputs(entries: Any, limits: Limits, all_binary: bool) -> list[WantedOutput]:
    if not isinstance(entries, list) or len(entries) > limits.tensors:
        raise bad_request(f"outputs must be a list of at most {limits.tensors}")
    outputs: list[WantedOutput] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise bad_request("every output must be an object with a name")
        name = _name(entry.get("name"), limits, "an output")
        parameters = _parameters(entry.get("parameters"), limits, f"output {name}")
        count = parameters.get("classification", 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 2**31:
            raise bad_request(f"classification of output {name} must be a whole number above 0")
        binary = parameters.get("binary_data", all_binary)
        if not isinstance(binary, bool):
            raise bad_request(f"binary_data of output {name} must be true or false")
        outputs.append(WantedOutput(name, count, binary, span_in(parameters, name)))
    return outputs


def _parameters(value: Any, limits: Limits, whose: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > limits.parameters:
        raise bad_request(f"the parameters of {whose} must be an object of at most {limits.parameters}")
    return value
