"""Models that are Python functions, for what no trained model does on purpose."""

from __future__ import annotations

import sys
import time

import numpy as np

from stretto.backends.model import Array


def double(rows: Array) -> Array:
    return rows * 2


def patience(rows: Array) -> Array:
    """How long a thread of its process may keep Python's lock while another wants it, in seconds."""
    return np.full_like(rows, sys.getswitchinterval())


def slow(rows: Array) -> Array:
    """Half a second, so that a worker can be caught at it."""
    time.sleep(0.5)
    return rows * 3


def hang(rows: Array) -> Array:
    """Only where the first number is above 0, so that it can be loaded and tried."""
    if rows[0, 0] > 0:
        time.sleep(600)
    return rows


def crash(rows: Array) -> Array:
    """Ends its whole process where a number is above 1000."""
    if (rows > 1000).any():
        import os

        os._exit(3)
    return rows + 1


def fussy(rows: Array) -> Array:
    """Raises where a number is negative."""
    if (rows < 0).any():
        raise RuntimeError("negative numbers are not for me")
    return np.sqrt(rows)


def wrong(rows: Array) -> Array:
    raise ZeroDivisionError("always")


def quick(rows: Array) -> Array:
    time.sleep(0.003)
    return rows


def careful(rows: Array) -> Array:
    time.sleep(0.012)
    return rows


class HeavyToLoad:
    """Takes its time until it is there, then answers four times what came."""

    def __init__(self) -> None:
        time.sleep(0.7)

    def __call__(self, rows: Array) -> Array:
        return rows * 4


class CannotBeLoaded:
    """As a model whose weights are damaged."""

    def __init__(self) -> None:
        time.sleep(0.2)
        raise RuntimeError("its weights are damaged")

    def __call__(self, rows: Array) -> Array:
        return rows
