"""Names of types, and the encoding of BYTES."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.api.datatypes import DATATYPE_OF, NUMPY_OF, join_bytes, numpy_dtype, parse_bytes
from stretto.api.errors import ApiError
from stretto.repository.tensors import DTYPES


def test_names() -> None:
    for datatype, dtype in NUMPY_OF.items():
        assert DATATYPE_OF[dtype.name] == datatype
        assert numpy_dtype(datatype, "x") == dtype
        assert dtype.byteorder in "<|=" and (datatype == "BYTES" or dtype == np.dtype(dtype.name))
    for name in DTYPES:  # whatever an application may declare
        assert name in DATATYPE_OF
    for unknown in ("", "fp32", "FP8", "BF16", "x" * 1000):
        with pytest.raises(ApiError) as caught:
            numpy_dtype(unknown, "x")
        assert len(caught.value.message) < 300


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_strings_there_and_back(strings: list[bytes]) -> None:
    joined = join_bytes(strings)
    assert parse_bytes(memoryview(joined), len(strings), "x").tolist() == strings


@given(st.binary(max_size=60), st.integers(0, 20))
def test_any_bytes_are_strings_or_refused(data: bytes, count: int) -> None:
    try:
        strings = parse_bytes(data, count, "x").tolist()
    except ApiError as error:
        assert error.reason.http_status == 400
    else:
        assert len(strings) == count and join_bytes(strings) == data
