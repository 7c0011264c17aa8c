"""How compiled code reaches the arrays whose addresses a record keeps.

Intrinsics, and not `numba.carray` in a function, because each of those functions would be compiled for itself.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


def array_of(element: Any) -> Any:
    """`int64s(address, count)`: the array of so many elements at an address."""
    array_type = types.Array(numba.from_dtype(np.dtype(element)), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(context, builder, array_type, *arguments)

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, address: Any, count: Any) -> Any:
        return array_type(types.uint64, types.int64), generate

    return opened


def array_in(name: str, element: Any) -> Any:
    """`lanes(s)`: the array whose address and length the record `s` keeps in `lanes_at` and `lanes_count`."""
    array_type = types.Array(numba.from_dtype(np.dtype(element)), 1, "C")

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def field(suffix: str) -> Any:
                word = context.get_value_type(types.int64)
                return builder.load(
                    cgutils.get_record_member(builder, arguments[0], record.offset(name + suffix), word)
                )

            return _array_at(context, builder, array_type, field("_at"), field("_count"))

        return array_type(record), generate

    return opened


def _array_at(context: Any, builder: Any, array_type: Any, address: Any, count: Any) -> Any:
    array = context.make_array(array_type)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    data = builder.inttoptr(address, array.data.type)
    populate_array(array, data=data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return array._getvalue()
