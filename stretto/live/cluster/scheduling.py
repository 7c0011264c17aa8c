"""The scheduler of a cluster: its hub, where front ends come to the desk and workers to the roster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.core.address import host_and_port, is_loopback
from stretto.core.errors import StrettoError
from stretto.live.cluster.links import Hub, HubLink, Told
from stretto.live.cluster.roster import Hello, Roster
from stretto.live.cluster.wire import Wires
from stretto.live.face.closed import Said
from stretto.live.face.desk import Desk
from stretto.live.face.front_end import FrontEnd
from stretto.live.face.link import Peer
from stretto.live.face.messages import NONSENSE
from stretto.live.service import Service

REMEMBERED = 10_000  # front ends that are gone, with the last request and report that came from each
SAID = 100  # of these, the last ones, with what they were told


class Scheduling:
    """From its making to its closing, front ends and workers are taken."""

    def __init__(
        self,
        service: Service,
        roster: Roster,
        wires: Wires,
        endpoint: str,
        statistics: Callable[[], dict[str, Any]] = dict,
    ):
        self.desk = roster.desk = Desk(service, statistics)
        self.desk.on_gone = self._front_gone
        self._service, self._roster = service, roster
        self._is_secured = wires.is_secured
        roster.fleet = lambda: service.offer.fleet
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._said: OrderedDict[int, Said] = OrderedDict()
        self._hub = Hub(wires, endpoint, self._welcome)

    @property
    def endpoint(self) -> str:
        return self._hub.endpoint

    def close(self) -> None:
        self.desk.stop()
        self._hub.close()

    def _welcome(self, link: HubLink, opening: Told) -> Peer:
        role = opening.get("role")
        if role == "worker":
            hello = Hello.read(opening)
            host, _ = host_and_port(hello.endpoint)
            if not self._is_secured and not is_loopback(host):
                raise StrettoError("a worker of another machine needs the cluster's key (--key-file)")
            link.welcome({"repository": self._folder()})
            return self._roster.came(link, hello)
        token = opening.get("token")
        if role != "front end" or not isinstance(token, int) or not 0 < token < 2**64:
            raise StrettoError(NONSENSE)
        for front in [each for each in self.desk.fronts.values() if each.token == token]:
            front.link.close()  # it came back before its silence was noticed
        known, booked = self._known.pop(token, (-1, 0))
        link.welcome({"known": known, "booked": booked})
        front = self.desk.connect(link)
        front.last, front.booked = known, booked  # this welcome may never arrive
        front.said += filter(None, (self._said.pop(token, None),))
        front.token, front.name = token, str(opening.get("name", ""))[:80]
        self._roster.tell_fronts([front])
        return front

    def _front_gone(self, front: FrontEnd) -> None:
        self._roster.front_gone(front)
        self._known[front.token] = front.last, front.booked
        self._said[front.token] = front.said[0]
        for remembered, most in ((self._known, REMEMBERED), (self._said, SAID)):
            while len(remembered) > most:
                remembered.popitem(last=False)

    def _folder(self) -> str | None:
        """Where the repository lies here: workers that have it elsewhere translate."""
        folders = [str(Path(files.folder).absolute().parent) for files in self._service.offer.known.values()]
        return folders[0] if folders and len(set(folders)) == 1 else None
