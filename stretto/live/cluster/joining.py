"""How a front end joins a cluster: its line to the scheduler, and the store that its tensors are sent from."""

from __future__ import annotations

import secrets
from typing import Any

from stretto.live.cluster.links import Line
from stretto.live.cluster.store import RemoteStore
from stretto.live.cluster.wire import Wires
from stretto.live.face.front import FrontEngine
from stretto.live.face.link import Peer


class Joining:
    """One front end. `name` stands in metrics and messages."""

    def __init__(self, wires: Wires, name: str):
        self.name = name
        self._token = secrets.randbits(63) + 1  # what workers and schedulers know it by, as long as it lives
        self.store = RemoteStore(wires, self._token)
        self._wires = wires
        self._line: Line | None = None

    def join(self, scheduler: str, engine: FrontEngine, peer: Peer) -> None:
        """From here on a scheduler is looked for. `peer` hears what it says, and is the engine or stands before it."""
        self.store.came = engine.came

        def opened(line: Line, welcome: dict[str, Any]) -> Peer:
            known, booked = (
                each if isinstance(each, int) else -1 for each in (welcome.get("known"), welcome.get("booked"))
            )
            engine.linked(line, self.name, known, booked)
            return peer

        self._line = Line(self._wires, scheduler, self._opening, opened)

    def _opening(self) -> dict[str, Any]:
        return {"role": "front end", "name": self.name, "token": self._token}

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self.store.close()
