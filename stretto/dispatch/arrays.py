"""How compiled code reaches the arrays whose addresses a record keeps.

Intrinsics, and not `numba.carray` in a function, because each of those functions would be compiled for itself. The
arrays are Numba's own but for one thing: an index below zero does not count from the end. Compiled rules never index
so, and what Numba does to allow it stands in the way of nearly every load.
"""

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_builtin, lower_getattr_generic, lower_setattr_generic
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, make_array, populate_array, record_getattr, record_setattr, store_item


class Kept(types.Array):
    """An array that a record keeps: one axis, no index below zero."""


register_default(Kept)(models.ArrayModel)


def _kept(element: Any) -> Kept:
    return Kept(told_apart(element), 1, "C")


_TOLD_APART: dict[Any, int] = {}  # types of records, numbered


def told_apart(element: Any) -> Any:
    """Numba's type of an element. Compiled code is told that what is written to a field of a record changes no other
    field, nor a plain array: no two of them lie in the same place. What was read once need not be read again.
    """
    element_type = numba.from_dtype(np.dtype(element))
    if isinstance(element_type, types.Record) and element_type not in _TOLD_APART:
        _TOLD_APART[element_type] = len(_TOLD_APART)
        lower_getattr_generic(element_type)(_get_field)
        lower_setattr_generic(element_type)(_set_field)
    return element_type


def _get_field(context: Any, builder: Any, record: Any, value: Any, field: str) -> Any:
    read = record_getattr(context, builder, record, value, field)
    _mark(builder, read, f"{_TOLD_APART[record]}.{field}")
    return read


def _set_field(context: Any, builder: Any, signature: Any, arguments: Any, field: str) -> None:
    record_setattr(context, builder, signature, arguments, field)
    _mark(builder, builder.block.instructions[-1], f"{_TOLD_APART[signature.args[0]]}.{field}")


def _mark(builder: Any, access: Any, place: str) -> None:
    """Of two accesses with marks of different places, neither sees what the other writes (LLVM's TBAA)."""
    if isinstance(access, (ir.LoadInstr, ir.StoreInstr)):
        module, zero = builder.module, ir.Constant(ir.IntType(64), 0)
        root = module.add_metadata([ir.MetaDataString(module, "stretto")])
        node = module.add_metadata([ir.MetaDataString(module, place), root, zero])
        access.set_metadata("tbaa", module.add_metadata([node, node, zero]))


def _place(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    index = context.cast(builder, index, index_type, types.intp)
    return builder.gep(make_array(array_type)(context, builder, array).data, [index])


@lower_builtin(operator.getitem, Kept, types.Integer)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array_type, index_type = signature.args
    place = _place(context, builder, array_type, arguments[0], index_type, arguments[1])
    item = load_item(context, builder, array_type, place)
    if not isinstance(array_type.dtype, types.Record):
        _mark(builder, item, array_type.dtype.name)
    return item


@lower_builtin(operator.setitem, Kept, types.Integer, types.Number)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array_type, index_type, value_type = signature.args
    place = _place(context, builder, array_type, arguments[0], index_type, arguments[1])
    store_item(context, builder, array_type, context.cast(builder, arguments[2], value_type, array_type.dtype), place)
    _mark(builder, builder.block.instructions[-1], array_type.dtype.name)
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def unowned(typingctx: Any, array: Any) -> Any:
    """The same array without its owner, so that its parts are not counted as references to that, each time with a
    barrier between the cores. The caller of the compiled function keeps the array.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        opened = make_array(array)(context, builder, arguments[0])
        opened.meminfo = cgutils.get_null_value(opened.meminfo.type)
        opened.parent = cgutils.get_null_value(opened.parent.type)
        return opened._getvalue()

    return array(array), generate


def array_of(element: Any) -> Any:
    """`int64s(address, count)`: the array of so many elements at an address."""
    array_type = _kept(element)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(context, builder, array_type, *arguments)

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, address: Any, count: Any) -> Any:
        return array_type(types.uint64, types.int64), generate

    return opened


def array_in(name: str, element: Any) -> Any:
    """`lanes(s)`: the array whose address and length the record `s` keeps in `lanes_at` and `lanes_count`."""
    array_type = _kept(element)

    @intrinsic  # type: ignore[untyped-decorator]
    def opened(typingctx: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def field(suffix: str) -> Any:
                word = context.get_value_type(types.int64)
                read = builder.load(
                    cgutils.get_record_member(builder, arguments[0], record.offset(name + suffix), word)
                )
                _mark(builder, read, f"{_TOLD_APART[record]}.{name}{suffix}")
                return read

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
