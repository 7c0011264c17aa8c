"""How much is read of a connection ahead of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

AHEAD_BYTES = 65_536  # that may come while requests wait for their turn


class Flow:
    """Reading stops when a client is far ahead, does not take its answers, or sent more than is its turn. Not at the
    first request that waits for its turn: then nobody would notice that the client left.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Sized):
        self._transport = transport
        self._pipeline = pipeline
        self._ahead_bytes = 0  # that came while requests waited for their turn
        self._has_had_turn = False
        self.read_paused = False
        self.write_paused = False
        self.is_in_crowd = False  # which reads in the event loop's place

    def came(self, size: int) -> None:
        self._ahead_bytes = self._ahead_bytes + size if self._pipeline else 0
        self._pause()

    def answered(self) -> None:
        """Fewer requests wait for their turn than before."""
        if not self._pipeline:
            self._ahead_bytes = 0
            self._resume()

    def end_turn(self) -> None:
        """Enough was taken in for this turn of the event loop."""
        self._has_had_turn = True
        self._pause()

    def begin_turn(self) -> None:
        self._has_had_turn = False
        self._resume()

    def join_crowd(self) -> None:
        self.is_in_crowd = True
        self._transport.pause_reading()

    def leave_crowd(self) -> None:
        self.is_in_crowd = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def waits_for_turn(self) -> bool:
        return self._has_had_turn

    def pause_writing(self) -> None:
        self.write_paused = True
        self._pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.answered()

    @property
    def _is_ahead(self) -> bool:
        return self.write_paused or self._has_had_turn or self._ahead_bytes > AHEAD_BYTES

    def _pause(self) -> None:
        if not self.read_paused and self._is_ahead and not self._transport.is_closing():
            self.read_paused = True
            if not self.is_in_crowd:
                self._transport.pause_reading()

    def _resume(self) -> None:
        if self.read_paused and not self._is_ahead and not self._transport.is_closing():
            self.read_paused = False
            if not self.is_in_crowd:
                self._transport.resume_reading()
