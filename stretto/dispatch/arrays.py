"""How compiled code reaches the arrays whose addresses a record keeps.

Intrinsics, and not `numba.carray` in a function, because each of those functions would be compiled for itself. The
arrays are Numba's own but for one thing: an index below zero does not count from the end. Compiled rules never index
so, and what Numba does to allow it stands in the way of nearly every load. In plain Python (STRETTO_PURE=1) they are
views that refuse such an index.
"""

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_builtin
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, make_array, populate_array, store_item

from stretto.core.pure import PURE, array_at


class RecordArray(types.Array):
    """An array that a record keeps: one axis, no index below zero."""


register_default(RecordArray)(models.ArrayModel)


def _array_of(element: Any) -> RecordArray:
    return RecordArray(numba.from_dtype(np.dtype(element)), 1, "C")


def _place(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    index = context.cast(builder, index, index_type, types.intp)
    return builder.gep(make_array(array_type)(context, builder, array).data, [index])


@lower_builtin(operator.getitem, RecordArray, types.Integer)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array_type, index_type = signature.args
    place = _place(context, builder, array_type, arguments[0], index_type, arguments[1])
    return load_item(context, builder, array_type, place)


@lower_builtin(operator.setitem, RecordArray, types.Integer, types.Number)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array_type, index_type, value_type = signature.args
    place = _place(context, builder, array_type, arguments[0], index_type, arguments[1])
    store_item(context, builder, array_type, context.cast(builder, arguments[2], value_type, array_type.dtype), place)
    return context.get_dummy_value()


def _unowned(typingctx: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        opened = make_array(array)(context, builder, arguments[0])
        opened.meminfo = cgutils.get_null_value(opened.meminfo.type)
        opened.parent = cgutils.get_null_value(opened.parent.type)
        return opened._getvalue()

    return array(array), generate


def _fetch(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [place], ir.FunctionType(ir.VoidType(), [place, word, word, word])
        )
        builder.call(prefetch, [builder.inttoptr(arguments[0], place), word(1), word(3), word(1)])  # to be written
        return context.get_dummy_value()

    return types.void(types.uint64), generate


# The same array without its owner, so that its parts are not counted as references to that, each time with a barrier
# between the cores. The caller of the compiled function keeps the array.
unowned: Any = (lambda array: array) if PURE else intrinsic(_unowned)
# Have the line of memory at an address brought to the processor while other work goes on.
fetch: Any = (lambda address: None) if PURE else intrinsic(_fetch)


def array_of(element: Any) -> Any:
    """`int64s(address, count)`: the array of so many elements at an address."""
    if PURE:
        return lambda address, count: array_at(address, count, np.dtype(element))
    array_type = _array_of(element)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(context, builder, array_type, *arguments)

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, address: Any, count: Any) -> Any:
        return array_type(types.uint64, types.int64), generate

    return opened


def array_in(name: str, element: Any) -> Any:
    """`lanes(s)`: the array whose address and length the record `s` keeps in `lanes_at` and `lanes_count`."""
    if PURE:
        return lambda record: array_at(
            getattr(record, f"{name}_at"), getattr(record, f"{name}_count"), np.dtype(element)
        )
    array_type = _array_of(element)

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def field(suffix: str) -> Any:
                word = context.get_value_type(types.int64)
                return builder.load(
                    cgutils.get_record_member(builder, arguments[0], record.offset(name + suffix), word)
                )

            address = field("_at")  # no compiled function moves an array
            address.set_metadata("invariant.load", builder.module.add_metadata([]))
            return _array_at(context, builder, array_type, address, field("_count"))

        return array_type(record), generate

    return opened


def _array_at(context: Any, builder: Any, array_type: Any, address: Any, count: Any) -> Any:
    array = make_array(array_type)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    data = builder.inttoptr(address, array.data.type)
    populate_array(array, data=data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return array._getvalue()
