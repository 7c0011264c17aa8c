"""Clients that say who they are: what they tell of their networks is noted, and they hear what to send next
(docs/network.md).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stretto.api.answers import RETRY_S
from stretto.api.errors import ApiError, Reason, bad_request
from stretto.api.messages import Array, InferRequest
from stretto.api.network import Reported, left_ns, told_parameters
from stretto.core.client import MAX_IDENTITY
from stretto.live.state import BEYOND_SHARE

if TYPE_CHECKING:
    from stretto.live.face.front_service import FrontService
    from stretto.live.service import Service


class Askers:
    """Over the service's registry of clients."""

    def __init__(self, service: Service | FrontService):
        self._service = service

    def slot_of(self, identity: Any, application: str) -> int:
        """The slot of a client, by which plans can route. What it asks of another application has another."""
        is_known_kind = isinstance(identity, int | str) and not isinstance(identity, bool)
        if not is_known_kind or not 0 < len(str(identity)) <= MAX_IDENTITY:
            raise bad_request(f"client_id must be a whole number, or a name of at most {MAX_IDENTITY} characters")
        return self._service.clients.slot_of(self._service.engine.clock(), str(identity), application)

    def hear(self, client: int, request: InferRequest, array: Array, said: Reported) -> None:
        """Count what a client asks and note what it says of its network. ApiError where that is beyond its share."""
        is_within = self._service.heard_from(
            client,
            request.application,
            array.shape,
            request.sent_bytes,
            bytes_per_s=said.bytes_per_s,
            delay_ns=said.round_trip_ns,
            slo_ns=said.slo_ns,
            said_rate=said.rate,
        )
        if not is_within:
            raise ApiError(Reason.OVERLOADED, BEYOND_SHARE, RETRY_S, self.told(client))

    def left_ns(self, slo_ns: int, request: InferRequest, said: Reported, client: int) -> int:
        """Of an SLO from frame to answer."""
        coming_ns = None
        if request.begun_ns is not None:
            coming_ns = max(0, time.monotonic_ns() - request.begun_ns - request.spent_ns)
        round_trip_ns = said.round_trip_ns
        if round_trip_ns is None:
            round_trip_ns = self._service.clients.delay_ns_of(client)
        return left_ns(slo_ns, said, request.sent_bytes, coming_ns, round_trip_ns)

    def told(self, client: int) -> dict[str, str]:
        """Parameters of its answer that say what to send next."""
        place = self._service.clients.place_of(client)
        return {} if place is None else told_parameters(place.told)
