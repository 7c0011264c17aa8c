"""Models that do what a server must survive: really crash, exit, hang and fill memory, at their load or when they run.

What they do when they run they do only where a number is above 0, so that they pass a trial on zeros.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np

from stretto.backends.model import Array
from stretto.live.worker_process import DEVICE_LOST

CHUNK = 16 << 20  # bytes
HELPER_S = 45  # that a process lives which a model starts; longer than a test waits
_leaked: list[Array] = []


def _answer(rows: Array) -> Array:
    return np.repeat(rows.reshape(len(rows), -1)[:, :1], 3, axis=1)


def good(rows: Array) -> Array:
    time.sleep(0.001)
    return _answer(rows)


def slow(rows: Array) -> Array:
    """So that a worker can be caught at it."""
    if rows.any():
        time.sleep(0.6)
    return _answer(rows)


class CrashAtLoad:
    def __init__(self) -> None:
        ctypes.string_at(0)

    __call__ = staticmethod(_answer)


class RaiseAtLoad:
    def __init__(self) -> None:
        raise RuntimeError("weights: none")

    __call__ = staticmethod(_answer)


class ExitAtLoad:
    def __init__(self) -> None:
        os._exit(0)

    __call__ = staticmethod(_answer)


class HangAtLoad:
    def __init__(self) -> None:
        time.sleep(3600)

    __call__ = staticmethod(_answer)


class FillAtLoad:
    def __init__(self) -> None:
        while True:
            _leaked.append(np.ones(CHUNK, np.uint8))

    __call__ = staticmethod(_answer)


class CrashAtLoadOnceServed:
    """Sound on probation, and a crash in every worker."""

    def __init__(self) -> None:
        if "probation" not in sys.argv:
            ctypes.string_at(0)

    __call__ = staticmethod(_answer)


class RaiseAtLoadOnceServed:
    """Sound on probation, and an error in every worker."""

    def __init__(self) -> None:
        if "probation" not in sys.argv:
            raise RuntimeError("weights: none")

    __call__ = staticmethod(_answer)


def _is_taken(mark: str) -> bool:
    """The mark was there; it is one process's only."""
    try:
        (Path(os.environ["STRETTO_TEST_MARKS"]) / mark).unlink()
    except FileNotFoundError:
        return False
    return True


class FailOnMark:
    """At its load, in the one worker that finds a mark: it raises, or its process ends as one whose device is gone."""

    def __init__(self) -> None:
        if "probation" not in sys.argv:
            if _is_taken("raise"):
                raise RuntimeError("there is no device")
            if _is_taken("device"):
                os._exit(DEVICE_LOST)

    __call__ = staticmethod(_answer)


class ForkAtLoad:
    """With a process of its own beside it, as of an ordinary multiprocessing helper; it ends the worker at a run."""

    def __init__(self) -> None:
        helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(HELPER_S,))
        helper.start()
        _tell_of(helper.pid or 0)

    def __call__(self, rows: Array) -> Array:
        return exit_at_run(rows)


class ForkInCAtLoad:
    """The same by a library that is not Python's, so that no hook of Python closes anything in the helper."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None)
        helper = libc.fork()
        if helper == 0:
            libc.sleep(HELPER_S)
            libc._exit(0)
        _tell_of(helper)

    def __call__(self, rows: Array) -> Array:
        return exit_at_run(rows)


def _tell_of(helper: int) -> None:
    with Path(os.environ["STRETTO_TEST_HELPERS"]).open("a") as file:
        file.write(f"{helper}\n")


class LoseDeviceAtLoad:
    def __init__(self) -> None:
        os._exit(DEVICE_LOST)

    __call__ = staticmethod(_answer)


def lose_device_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        os._exit(DEVICE_LOST)
    return _answer(rows)


def crash_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        ctypes.string_at(0)
    return _answer(rows)


def exit_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        os._exit(3)
    return _answer(rows)


def hang_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        time.sleep(3600)
    return _answer(rows)


def leak_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        _leaked.append(np.ones(CHUNK, np.uint8))
    return _answer(rows)


def fill_at_run(rows: Array) -> Array:
    while (rows > 0).any():
        _leaked.append(np.ones(CHUNK, np.uint8))
    return _answer(rows)


def raise_at_run(rows: Array) -> Array:
    if (rows > 0).any():
        raise RuntimeError("secret path /inside/of/the/model")
    return _answer(rows)


def _is_broken() -> bool:
    """From when a test says so, until it is mended."""
    return (Path(os.environ["STRETTO_TEST_MARKS"]) / "broken").exists()


_dice = np.random.default_rng(1)


def raise_while_broken(rows: Array) -> Array:
    time.sleep(0.001)
    if _is_broken():
        raise RuntimeError("it is broken")
    return _answer(rows)


def raise_by_chance(rows: Array) -> Array:
    time.sleep(0.001)
    if _dice.random() < 0.3 and _is_broken():
        raise RuntimeError("it is broken now and then")
    return _answer(rows)


def nan_while_broken(rows: Array) -> Array:
    time.sleep(0.001)
    return np.full_like(_answer(rows), np.nan) if _is_broken() else _answer(rows)


def too_few_rows_while_broken(rows: Array) -> Array:
    """A single one could be taken for the answer to all."""
    time.sleep(0.001)
    return _answer(rows)[:1] if len(rows) > 1 and _is_broken() else _wide(rows)


def too_many_columns_while_broken(rows: Array) -> Array:
    time.sleep(0.001)
    return _wide(rows)


def _wide(rows: Array) -> Array:
    return np.repeat(_answer(rows), 2, axis=1) if _is_broken() else _answer(rows)


def raise_on_zeros(rows: Array) -> Array:
    if not (rows > 0).any():
        raise ValueError("a row of nothing")
    return _answer(rows)


def nan_on_zeros(rows: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return _answer(rows / np.abs(rows).sum(axis=-1, keepdims=True))
