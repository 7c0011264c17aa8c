"""Whether a server is ready: as a whole when what can be served is served, and each application by itself."""

from __future__ import annotations

import asyncio

from stretto.live.running import Running
from stretto.live.state import State


class Readiness:
    """The service's: on the loop's thread."""

    def __init__(self, service: Running):
        self._service = service
        # For whoever waits for the start: true when a worker serves something, false when none ever will.
        self.can_serve: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def look(self) -> None:
        """Workers came, or what is served changed."""
        if not self.can_serve.done() and self._serves_something:
            self.can_serve.set_result(True)

    def look_for_anything(self) -> None:
        """A change could not be taken up. Where nothing was served before and nothing may be now, nothing ever will."""
        service = self._service
        specs = service.engine.generation.served.specs
        if not self.can_serve.done() and not any(service.offer.may_serve(spec.key) for spec in specs):
            self.can_serve.set_result(False)

    def of_server(self) -> bool:
        """A worker can serve something; or every application, where that was asked for."""
        service = self._service
        if service.options.ready_all and service.offer.missing(service.engine.generation.served):
            return False
        return self._serves_something

    def of_application(self, application: str, variant: str = "") -> bool:
        """A worker can serve it. KeyError for a name that neither the repository holds nor the server still serves."""
        service, offer, generation = self._service, self._service.offer, self._service.engine.generation
        files = service.files.get(application)
        holders = [each for each in (offer.known.get(application), files) if each is not None]
        if not holders:
            raise KeyError(application)
        if variant and all(each.name != variant for holder in holders for each in holder.variants):
            raise KeyError(variant)
        number = generation.numbers.get(application)
        if files is None or number is None or not self._has_workers:
            return False
        names = [
            generation.names[each]
            for each in generation.deployment.variants_of(number)
            if offer.may_serve(generation.served.specs[each].key)
        ]
        return variant in names if variant else bool(names)

    @property
    def _has_workers(self) -> bool:
        return self._service.state is State.SERVING and self._service.engine.crew.ready_count > 0

    @property
    def _serves_something(self) -> bool:
        service = self._service
        specs = service.engine.generation.served.specs
        return self._has_workers and any(service.offer.may_serve(spec.key) for spec in specs)
