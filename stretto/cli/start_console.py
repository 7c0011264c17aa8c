"""What a server says of its start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.api.server import Listeners
    from stretto.live.service import Service

TELL_AFTER_S = 4.0  # of compiling
SLOW_STEPS = {  # and what is said of them where there is no bar
    "compiling": "compiling the dispatcher, which the first start on a machine needs; see stretto warm",
    "loading models": "loading models; on a GPU every batch size is made ready before the first query",
}


class StartConsole:
    """On standard error, like all that is not a result: where it listens, how far the start is, and that it serves."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._bar: Any = None
        self._task: Any = None
        self._told: set[str] = set()
        self._listening: set[str] = set()  # by the name of the listener
        self._began_s = time.monotonic()

    def listening(self, listeners: Listeners) -> None:
        """The addresses are real also where ports were left open. Each is told once."""
        for name, (host, port) in listeners.addresses.items():
            self.listens(name, host, port, listeners.listen.tls_certificate is not None)
        from stretto.core.address import is_loopback

        is_open = not is_loopback(listeners.listen.host) and not listeners.listen.tokens
        if is_open and "open" not in self._told:
            self._told.add("open")
            self._say("warning: other machines can call this server without a token; see --token-file")

    def listens(self, name: str, host: str, port: int, is_secure: bool) -> None:
        if name in self._listening:
            return
        self._listening.add(name)
        scheme = "tcp://" if name == "cluster" else "" if "grpc" in name else "https://" if is_secure else "http://"
        self._say(f"  {name:<16} {scheme}{host}:{port}")

    def progress(self, step: str, share: float) -> None:
        """A bar on a terminal; elsewhere one line, where there is something to wait for."""
        if sys.stderr is not None and sys.stderr.isatty():
            self._show(step, share)
        elif step in SLOW_STEPS and step not in self._told and time.monotonic() - self._began_s > TELL_AFTER_S:
            self._told.add(step)
            self._say(SLOW_STEPS[step])

    def serving(self, service: Service, listeners: Listeners) -> None:
        for warning in service.offer.warnings:
            self._say(f"warning: {warning}")
        names = ", ".join(service.files)
        fronts = len(listeners.plane.fronts())
        behind = f" behind {fronts} front ends" if fronts else ""
        self._say(f"serving {names} with {service.options.worker_count} worker(s){behind}")

    def started(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, step: str, share: float) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(step, total=1.0)
            self._bar.start()
        self._bar.update(self._task, description=step, completed=share)
