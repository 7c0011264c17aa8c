"""The rules of shared memory without a server: bounds, types, the budget, and whatever a client may send."""

from __future__ import annotations

import mmap
import os
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.api.budget import Budget
from stretto.api.datatypes import NUMPY_OF
from stretto.api.errors import ApiError, Reason
from stretto.api.limits import Limits
from stretto.api.messages import InputTensor, OutputTensor, Span
from stretto.api.shared_memory import FOLDER, Regions, copy_into, placeholder, put, span_in
from tests.api.grpc.mirror_plane import TAKES


def regions(**limits: int) -> Regions:
    return Regions(Limits(**limits), Budget(1_000_000), is_allowed=True)


def test_the_number_and_the_bytes_of_regions_are_bounded(segment: SharedMemory) -> None:
    held = regions(shared_memory_regions=2, shared_memory_bytes=1000)
    held.register("a", segment.name, 0, 600)
    with pytest.raises(ApiError, match="1000 bytes"):
        held.register("b", segment.name, 0, 401)
    held.register("b", segment.name, 0, 400)
    with pytest.raises(ApiError, match="2 regions"):
        held.register("c", segment.name, 0, 1)
    kept = held.target(Span("a", 0, 40), 40)
    held.unregister()
    assert (held.open, held.open_bytes) == (1, 600), "what a request has counts on"
    assert held.status() == []
    descriptor = kept.descriptor
    os.fstat(descriptor)
    del kept
    assert (held.open, held.open_bytes) == (0, 0)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_inputs_are_held_to_the_budget(segment: SharedMemory) -> None:
    budget = Budget(10_000)
    held = Regions(Limits(), budget, is_allowed=True)
    held.register("a", segment.name, 0, 16_384)
    tensor = InputTensor("x", "UINT8", placeholder("UINT8", (1, 9000)), shared=Span("a", 0, 9000))
    assert budget.take(2000)
    with pytest.raises(ApiError) as refused:
        held.fetch([tensor], TAKES)
    assert refused.value.reason is Reason.OVERLOADED
    assert budget.used == 2000
    budget.used = 0
    held.fetch([tensor], TAKES)
    assert tensor.shared is None and tensor.array.nbytes == 9000 and budget.used == 0


@pytest.mark.parametrize("dtype", ["BOOL", "INT8", "UINT16", "INT64", "FP16", "FP64", "BYTES"])
def test_all_datatypes_both_ways(segment: SharedMemory, dtype: str) -> None:
    held = regions()
    held.register("a", segment.name, 0, 16_384)
    array = np.array([[0, 1, 1]]).astype(NUMPY_OF[dtype])
    if dtype == "BYTES":
        array = np.array([[b"", b"one", b"two"]], object)
    output = OutputTensor("y", dtype, array)
    put(held.target(Span("a", 8, 100), 0), Span("a", 8, 100), output)
    assert output.shared is not None and output.shared.offset == 8
    tensor = InputTensor("y", dtype, placeholder(dtype, array.shape), shared=output.shared)
    held.fetch([tensor], TAKES)
    assert tensor.array.dtype == array.dtype and tensor.array.tolist() == array.tolist()


@pytest.mark.parametrize("left", [0, 4096, 5000, 8192])
def test_a_segment_that_is_cut_short_while_an_answer_is_written(segment: SharedMemory, left: int) -> None:
    """It became as long as before, though its owner had said otherwise."""
    path = f"{FOLDER}/{segment.name}"
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 12_000) as mapped, memoryview(mapped) as target:
        os.truncate(path, left)  # after its length was looked at
        with pytest.raises(OSError, match="Bad address"):
            copy_into(target, b"x" * 12_000)
        assert os.stat(path).st_size == left
        os.truncate(path, 16_384)


def test_answers_lie_where_they_should(segment: SharedMemory) -> None:
    held = regions()
    held.register("a", segment.name, 5000, 10_000)
    region = held.target(Span("a", 0, 1), 1)
    for offset, content in ((0, b"first"), (3000, b"x" * 5000), (9995, b"last!"), (77, b"")):
        region.write(Span("a", offset, len(content)), content)
        assert bytes(segment.buf[5000 + offset : 5000 + offset + len(content)]) == content
    assert bytes(segment.buf[:5000]) == bytes(5000) and bytes(segment.buf[15_000:]) == bytes(1384)


def test_a_bool_is_0_or_1(segment: SharedMemory) -> None:
    held = regions()
    held.register("a", segment.name, 0, 10)
    segment.buf[0] = 2
    with pytest.raises(ApiError, match="0 and 1"):
        held.fetch([InputTensor("x", "BOOL", placeholder("BOOL", (1, 3)), shared=Span("a", 0, 3))], TAKES)


def test_what_an_application_takes_bounds_it(segment: SharedMemory) -> None:
    held = regions()
    held.register("a", segment.name, 0, 16_384)
    for datatype, shape, size in (("UINT8", (1, 1_000_001), 1_000_001), ("BYTES", (1, 80_001), 16_384)):
        with pytest.raises(ApiError) as refused:
            held.fetch([InputTensor("x", datatype, placeholder(datatype, shape), shared=Span("a", 0, size))], TAKES)
        assert refused.value.reason is Reason.TOO_LARGE


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
PLACES = ANYTHING | st.integers(-10, 20_000) | st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63)])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_a_client_sends_it_is_a_region_within_its_segment_or_a_refusal(
    segment: SharedMemory, data: st.DataObject
) -> None:
    held = regions(shared_memory_bytes=100_000)
    keys = ANYTHING | st.sampled_from([segment.name, f"/{segment.name}", f"//{segment.name}", f"./{segment.name}"])
    try:
        held.register(data.draw(st.just("a") | ANYTHING), data.draw(keys), data.draw(PLACES), data.draw(PLACES))
    except ApiError:
        assert held.open == 0
        return
    [status] = held.status()
    assert status["key"].removeprefix("/") == segment.name
    assert 0 <= status["offset"] < status["offset"] + status["byte_size"] <= segment.size
    parameters = {f"shared_memory_{name}": data.draw(PLACES) for name in ("offset", "byte_size")}
    try:
        span = span_in(parameters | {"shared_memory_region": status["name"]}, "x")
        assert span is not None
        tensor = InputTensor("x", "UINT8", placeholder("UINT8", (1, data.draw(st.integers(0, 20_000)))), shared=span)
        held.fetch([tensor], TAKES)
        assert tensor.array.size == span.byte_size and span.offset + span.byte_size <= status["byte_size"]
    except ApiError as error:
        assert error.reason in (Reason.BAD_REQUEST, Reason.TOO_LARGE)


def test_a_tensor_without_a_region_is_not_in_shared_memory() -> None:
    assert span_in({"shared_memory_offset": 3}, "x") is None
