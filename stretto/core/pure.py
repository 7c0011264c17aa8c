"""STRETTO_PURE=1: what is otherwise compiled runs as plain Python, for coverage, a debugger and mutants.

It is far slower, and meant for tests. In one way it is stricter: compiled code does not look whether an
index lies inside an array, while here every index outside it, or below zero, raises an IndexError.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import numpy as np

PURE = os.environ.get("STRETTO_PURE") == "1"

if PURE:
    np.seterr(all="ignore")  # compiled integers wrap around and divisions by zero give infinity, without a word


class Record:
    """One element of an array of records, with its fields as attributes, as compiled code has it."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: dict[str, Any], index: int) -> None:
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_index", index)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._columns[name][self._index]
        except KeyError:
            raise AttributeError(f"a record has no field {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._columns[name][self._index] = value


class CheckedArray(np.ndarray[Any, Any]):
    """Refuses an index below zero, and gives its records as `Record`."""

    _columns: dict[str, Any] | None

    def __array_finalize__(self, obj: Any) -> None:
        self._columns = None

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int | np.integer):
            return super().__getitem__(index)
        self._check(index)
        if self.dtype.names is None or self.ndim != 1:
            return super().__getitem__(index)
        if self._columns is None:
            fields = self.view(np.ndarray)
            self._columns = {name: fields[name] for name in self.dtype.names}
        return Record(self._columns, int(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, int | np.integer):
            self._check(index)
        super().__setitem__(index, value)

    def _check(self, index: Any) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside an array of {len(self)}")


def in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself; arrays of records that it is given have their fields as attributes."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return function(*map(_opened, arguments), **{name: _opened(value) for name, value in named.items()})

    return called


def _opened(value: Any) -> Any:
    is_of_records = type(value) is np.ndarray and value.dtype.names is not None
    return value.view(CheckedArray) if is_of_records else value


@lru_cache(4096)
def array_at(address: Any, count: Any, element: np.dtype[Any]) -> CheckedArray:
    """So many elements at an address, which somebody else owns."""
    memory: Any = (ctypes.c_char * (int(count) * element.itemsize)).from_address(int(address))
    array: CheckedArray = np.frombuffer(memory, element).view(CheckedArray)
    return array


def leading_zeros(word: Any) -> int:
    """Of 64 bits."""
    return 64 - int(word).bit_length()


def trailing_zeros(word: Any) -> int:
    """Of 64 bits."""
    word = int(word)
    return (word & -word).bit_length() - 1 if word else 64
