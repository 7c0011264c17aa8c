"""The control plane: what a server says of itself, and what an operator changes while it serves. Translators only read
and write bytes, as with the data plane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from stretto.api import documents, settings
from stretto.api.errors import ApiError, bad_request, not_found
from stretto.config.fields import ConfigError
from stretto.config.partition import parse_partition
from stretto.core.errors import StrettoError
from stretto.core.snapshot import Snapshot
from stretto.live.requests import NoSuchApplication, NotServed
from stretto.repository.problems import RepositoryError

if TYPE_CHECKING:
    from stretto.api.shared_memory import Regions
    from stretto.api.tracing import Tracing
    from stretto.live.face.front_service import FrontService
    from stretto.live.moves import Moves
    from stretto.live.service import Service
    from stretto.repository.application import ApplicationFiles


MAX_SENTENCE = 300


class Controlled(Protocol):
    """The data plane of the same server."""

    tracing: Tracing | None
    regions: Regions

    @property
    def service(self) -> Service | FrontService:
        """ApiError while there is none."""

    def unknown(self, application: str, version: str = "") -> ApiError:
        """Why nothing can be said of it."""


class Control:
    """One for all listeners. Every call but those about the server itself may raise ApiError."""

    def __init__(self, plane: Controlled):
        self._plane = plane
        self.settled: Callable[[], Awaitable[None]] = _at_once  # until front ends, where there are any, know of changes

    @property
    def _service(self) -> Service:
        """Front ends have no listener for the calls that need more than they have."""
        return cast("Service", self._plane.service)

    # -- what it says ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        from stretto.live.snapshots import snapshot

        return snapshot(self._service)

    def welcome(self, is_management: bool) -> dict[str, Any]:
        return documents.welcome(is_management)

    def server_metadata(self) -> dict[str, Any]:
        return documents.server_metadata(self._plane.regions.is_allowed)

    def model_metadata(self, application: str, version: str = "") -> dict[str, Any]:
        files, versions = self._files(application, version)
        return documents.model_metadata(files, versions)

    def model_config(self, application: str, version: str = "") -> dict[str, Any]:
        files, versions = self._files(application, version)
        return documents.model_config(files, versions)

    async def refresh(self) -> None:
        """Statistics are as of now after this; a front end has them from elsewhere."""

    def statistics(self, application: str | None = None, version: str = "") -> dict[str, Any]:
        if application is not None:
            self._files(application, version)
        return documents.statistics(self.snapshot(), application, version)

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        return documents.index(self._service, ready_only)

    def fleet(self) -> dict[str, Any]:
        return documents.fleet(self.snapshot())

    def clients(self) -> dict[str, Any]:
        return documents.clients(self.snapshot())

    def partition(self) -> dict[str, Any]:
        """The partition in force, and what of it is served here. ApiError where this server has no share of one."""
        return documents.partition(self._service, self._moves)

    def _files(self, application: str, version: str) -> tuple[ApplicationFiles, list[str]]:
        """With the names of the variants that are served, or, while it is not, of those that could be."""
        service = self._plane.service
        files = service.files.get(application) or service.offer.known.get(application)
        if files is None:
            raise self._plane.unknown(application)
        enabled = {variant.name for variant in files.variants if variant.enabled}
        versions = [name for name in files.ladder if name in enabled]
        if version:
            if version not in versions:
                raise self._plane.unknown(application, version)
            versions = [version]
        return files, versions

    # -- what is changed ---------------------------------------------------------------------------------------------

    async def load(self, application: str) -> None:
        try:
            await self._service.changes.load(application)
            await self.settled()
        except StrettoError as error:
            if isinstance(error, RepositoryError) or application in self._service.offer.known:
                raise bad_request(_sentence(error)) from None
            raise self._plane.unknown(application) from None

    async def unload(self, application: str) -> None:
        try:
            await self._service.changes.unload(application)
            await self.settled()
        except NoSuchApplication:
            raise self._plane.unknown(application) from None
        except StrettoError as error:
            raise bad_request(_sentence(error)) from None

    def log_settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As they are, after the changes; a translator lets only management change them."""
        return settings.update_log_settings(changes) if changes else settings.log_settings()

    def trace_settings(self, application: str = "", changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Of one application, or of all."""
        tracing = self._plane.tracing
        if application:
            self._files(application, "")
        if changes:
            return settings.update_trace_settings(tracing, changes, application)
        return settings.trace_settings(tracing, application)

    async def take_partition(self, body: bytes) -> None:
        """Another partition: what is gained is served when this returns; what is lost goes once it is served
        elsewhere.
        """
        moves = self._moves
        try:
            await moves.take_up(parse_partition(body.decode(), "the partition"))
            await self.settled()
        except UnicodeDecodeError:
            raise bad_request("the partition is no text") from None
        except StrettoError as error:
            raise bad_request(_sentence(error)) from None

    @property
    def _moves(self) -> Moves:
        moves = self._service.moves
        if moves is None:
            raise not_found("this server serves no sub-cluster of a partition; see stretto scheduler --partition")
        return moves

    async def add_workers(self, worker: Any) -> None:
        """Further workers, written as for `stretto serve --worker`."""
        if not isinstance(worker, str) or not 0 < len(worker) <= 200:
            raise bad_request('say which workers: {"worker": "cpu*2"}')
        try:
            await self._service.changes.add_workers(worker)
        except StrettoError as error:
            raise bad_request(str(error)[:300]) from None


async def _at_once() -> None: ...


def _sentence(error: StrettoError) -> str:
    """What is wrong, without the folder where it is. Nothing is cut off but that: the end alone says little."""
    if isinstance(error, RepositoryError):
        return error.reason[:MAX_SENTENCE]
    first = (error.message if isinstance(error, ConfigError) else str(error)).partition("\n")[0]
    head, _, rest = first.partition(": ")
    is_folder = rest and "/" in head and " " not in head and not isinstance(error, NotServed)
    return (rest if is_folder else first)[:MAX_SENTENCE]
