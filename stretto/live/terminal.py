"""Whether SIGHUP says what it was made for: that the terminal which a process was started from is gone."""

from __future__ import annotations

import os
import signal


class Terminal:
    """That of this process, as it was when this was made."""

    def __init__(self) -> None:
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as with nohup
        self._was_there = not is_ignored and _has_terminal()

    @property
    def is_gone(self) -> bool:
        return self._was_there and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
