"""The data plane: what a client may ask, whatever the protocol. It checks a request, hands it to the engine, and
makes the answer; translators only read and write bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from stretto.api.answers import RETRY_S, SENTENCES, answer, refusal
from stretto.api.askers import Askers
from stretto.api.budget import Budget
from stretto.api.control import Control
from stretto.api.datatypes import DATATYPE_OF
from stretto.api.errors import ApiError, Reason, no_room, not_found
from stretto.api.feedback import Feedback
from stretto.api.images import (
    INLINE_US,
    ImageThreads,
    checked_frames,
    load_decoders,
    reading_us,
)
from stretto.api.inputs import check_values, checked_input, checked_outputs, named_input
from stretto.api.limits import Limits
from stretto.api.messages import Array, InferRequest, InferResponse, InputTensor, Terms
from stretto.api.network import NOTHING
from stretto.api.rates import Rates
from stretto.api.rooms import KEPT_BYTES, Rooms
from stretto.api.shared_memory import Regions, put
from stretto.api.terms import read_terms
from stretto.api.turns import Turns
from stretto.core.outcome import Outcome
from stretto.live.requests import NoSuchVariant, Request
from stretto.live.state import State
from stretto.repository.images import can_decode

if TYPE_CHECKING:
    from stretto.api.front_counts import FrontCounts
    from stretto.api.tracing import Tracing
    from stretto.live.face.front_service import FrontService
    from stretto.live.lag import LoopLag
    from stretto.live.service import Service
    from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.api")

STARTING, SERVING = State.STARTING, State.SERVING  # asked for with every request
Done = Callable[[InferResponse | ApiError], None]


class Plane:
    """One for all listeners. They may open before there is anything to serve: until `serve` is called, every call but
    those about the server itself is told how far the start is.
    """

    def __init__(self, service: Service | None = None, limits: Limits | None = None, shared_memory: bool = False):
        self.limits = limits or Limits()
        self.budget = Budget(self.limits.budget_bytes)
        self.rooms = Rooms(min(KEPT_BYTES, self.limits.memory_bytes // 8))
        self.turns = Turns()
        self.regions = Regions(self.limits, self.budget, shared_memory)
        self.refused: dict[str, int] = {}  # requests that became no query, by reason
        self.tracing: Tracing | None = None  # where spans are wanted
        self.rates: Rates | None = None  # where clients are limited
        self.feedback: Feedback | None = Feedback()  # None: not here
        self.fronts: Callable[[], Mapping[str, FrontCounts]] = dict  # what front ends count, where there are any
        self.wants_to_leave = False  # it serves on for a while, but balancers are to send nothing more
        self.control = Control(self)
        self._service: Service | FrontService | None = None
        self._askers: Askers  # from `serve` on
        if service is not None:
            self.serve(service)
        self._step, self._progress = "starting", 0.0
        self._open = 0
        self._images = ImageThreads()

    def starts(self, step: str, progress: float) -> None:
        """How far the start is, from 0 to 1, and what is done now."""
        self._step, self._progress = step, progress

    def serve(self, service: Service | FrontService) -> None:
        """There is something to serve from now on."""
        service.clients.limit(self.limits.client_ids, self.limits.client_s)
        if can_decode() and any(len(files.input.encodings) > 1 for files in service.offer.known.values()):
            load_decoders()
        self._askers = Askers(service)
        self._service = service

    @property
    def service(self) -> Service | FrontService:
        """ApiError while there is none."""
        if self._service is None:
            raise self._not_ready()
        return self._service

    @property
    def _managed(self) -> Service:
        """The service behind calls that a front end has no listener for."""
        return cast("Service", self.service)

    @property
    def is_starting(self) -> bool:
        return self._service is None

    @property
    def progress(self) -> float:
        return self._progress if self._service is None else 1.0

    def _not_ready(self) -> ApiError:
        if self._service is None:
            return ApiError(Reason.UNAVAILABLE, f"the server is starting: {self._step}, {self._progress:.0%}", RETRY_S)
        return ApiError(Reason.UNAVAILABLE, "the server is starting or going down", RETRY_S)

    # -- about the server --------------------------------------------------------------------------------------------

    def live(self) -> bool:
        return self._service is None or self._service.state is not State.STOPPED

    def ready(self, application: str | None = None, version: str = "") -> bool:
        if self._service is None:
            return False
        try:
            return self._service.is_ready(application, version) and not self.wants_to_leave
        except KeyError:
            raise self.unknown(application or "", version) from None

    def check_ready(self) -> None:
        """ApiError, with how far it is, where the server cannot serve yet, or no more."""
        if not self.ready():
            raise self._not_ready()

    @property
    def lag(self) -> LoopLag:
        service = self._service or self.service
        return service.engine.lag

    @property
    def is_leaving(self) -> bool:
        """It is draining or stopped: clients should go elsewhere with what they ask next."""
        state = STARTING if self._service is None else self._service.state
        return self.wants_to_leave or (state is not SERVING and state is not STARTING)

    def unknown(self, application: str, version: str = "") -> ApiError:
        """Why nothing can be said of it."""
        if application in self.service.offer.known and version:
            return not_found(f"application {application} has no variant {version[:60]!r}")
        return not_found(f"there is no application {application[:60]!r}")

    # -- inference ---------------------------------------------------------------------------------------------------

    async def infer(self, request: InferRequest, open_requests: set[Request] | None = None) -> InferResponse:
        """The answer, or ApiError. Cancelling the task that waits here cancels the queries.

        `open_requests` holds the request while it waits: a connection's own, so that losing it can cancel them.
        """
        future: asyncio.Future[InferResponse | ApiError] = asyncio.get_running_loop().create_future()

        def done(result: InferResponse | ApiError) -> None:
            if not future.done():
                future.set_result(result)

        if self.reads_slowly(request):
            await self.read_images(request)
        entered = self.begin(request, done)
        if open_requests is not None:
            open_requests.add(entered)
        try:
            result = await future
        except asyncio.CancelledError:
            self.cancel(entered)
            raise
        finally:
            if open_requests is not None:
                open_requests.discard(entered)
        if isinstance(result, ApiError):
            raise result
        return result

    def begin(self, request: InferRequest, done: Done) -> Request:
        """Enter a request; `done` is called once, possibly before this returns. ApiError where it is not taken."""
        try:
            entered = self._checked(request, done)
            if self.tracing is not None:
                self.tracing.begin(request, entered)
            self._enter(entered)
        except (ApiError, KeyError, NoSuchVariant) as error:
            if request.charge is not None:
                request.charge.give_back()
            raise self._refusal(request.application, request.version, error) from None
        return entered

    def begin_by(self, terms: Terms, array: Array, spent_ns: int, done: Callable[[Request], None]) -> Request:
        """As `begin`, for a request whose terms were checked before. `done` has the request itself, when that has ended
        and is let go of.
        """
        files = terms.files
        try:
            self._admit(files.name)
            check_values(files, array)
            entered = Request(
                files.name,
                array,
                max(1, terms.slack_ns - spent_ns),
                done,
                priority=terms.priority,
                pinned=terms.version,
                min_accuracy=terms.min_accuracy,
                spent_ns=spent_ns,
            )
            self._enter(entered)
        except (ApiError, KeyError, NoSuchVariant) as error:
            raise self._refusal(files.name, terms.version, error) from None
        return entered

    def _enter(self, entered: Request) -> None:
        """Into the engine; `let_go` is to be called when it has ended."""
        if not self.budget.take(entered.inputs.nbytes):
            raise no_room()
        self._open += 1
        service = self._service or self.service
        if entered.client >= 0:
            entered.asker = service.clients.began(entered.client, entered.rows)
        try:
            service.engine.submit(entered, gathers=True)
        except BaseException:
            if entered.outcome is None:  # nothing of it may end later
                self.let_go(entered)
                entered.done = _ignore
                service.engine.cancel(entered)
            raise

    def let_go(self, entered: Request) -> None:
        """It has ended."""
        self._open -= 1
        self.budget.used -= entered.inputs.nbytes
        if entered.asker is not None:
            self.service.clients.ended(entered.asker, entered.rows)

    def _refusal(self, application: str, version: str, error: ApiError | KeyError | NoSuchVariant) -> ApiError:
        if isinstance(error, NoSuchVariant):
            error = not_found(str(error))
        elif isinstance(error, KeyError):
            error = self.unknown(application, version)
        return self.count_refusal(error)

    def reads_slowly(self, request: InferRequest) -> bool:
        """Its images are to be read with `read_images` before it is begun: here, everybody would wait for them. Those
        in shared memory are not looked at before it is known that the request is taken.
        """
        if len(request.inputs) != 1 or not request.inputs[0].encoding:
            return False
        files, tensor = self.service.files.get(request.application), request.inputs[0]
        if files is None or tensor.array.size > files.limits.max_batch:
            return False  # it is refused, and nothing is read
        return tensor.shared is not None or reading_us(files.input, tensor) > INLINE_US

    async def read_images(self, request: InferRequest) -> None:
        """In a thread. ApiError where they are not taken; the time counts against the request's deadline."""
        clock = self.service.engine.clock
        came_ns = clock()
        try:
            files = self._admitted(request)
            if self.rates is not None:
                self.rates.charge(request, self._managed.engine)
            self.regions.fetch(request.inputs, files.limits)
            frames = checked_frames(files, named_input(files, request.inputs))
            size = frames.bytes_as(files.input.dtype)
            if not self.budget.take(size):
                raise no_room()
            try:
                array = await self._images.read(files.input, frames)
            finally:
                self.budget.used -= size
        except ApiError as error:
            if request.charge is not None:
                request.charge.give_back()
            raise self.count_refusal(error) from None
        request.inputs = [InputTensor(files.input.name, DATATYPE_OF[files.input.dtype], array)]
        request.spent_ns += clock() - came_ns

    def take_feedback(self, application: str, content: dict[str, Any]) -> dict[str, int]:
        """Labels of earlier requests: what became of them. ApiError where they cannot be taken."""
        if self.feedback is None or self.fronts():
            raise not_found("feedback is taken where one process answers all clients, not beside front ends")
        files = self.service.files.get(application)
        if files is None:
            raise self.not_served(application)
        return self.feedback.take(files, content)

    def cancel(self, entered: Request) -> None:
        if entered.outcome is None:
            self.service.engine.cancel(entered)

    @property
    def open_requests(self) -> int:
        return self._open

    def count_refusal(self, error: ApiError) -> ApiError:
        """Once, however many hands an error goes through."""
        if not error.is_counted:
            error.is_counted = True
            word = error.reason.word
            self.refused[word] = self.refused.get(word, 0) + 1
        return error

    def not_served(self, application: str) -> ApiError:
        """Why a request for it is not taken."""
        if application in self.service.offer.known:  # why is told by management
            return ApiError(Reason.UNAVAILABLE, f"application {application} is not served at present", RETRY_S)
        return self.unknown(application)

    def _admitted(self, request: InferRequest) -> ApplicationFiles:
        files = self._admit(request.application)
        if request.version and all(variant.name != request.version for variant in files.variants):
            raise self.unknown(request.application, request.version)
        return files

    def _admit(self, application: str) -> ApplicationFiles:
        """ApiError where no request for this application, or for any, is taken at present."""
        service = self._service or self.service
        files = service.files.get(application)
        if files is None:
            raise self.not_served(application)
        if service.state is not SERVING:
            raise ApiError(Reason.UNAVAILABLE, "the server is starting or going down; try another one", RETRY_S)
        if service.engine.crew.ready_count == 0:
            raise ApiError(Reason.UNAVAILABLE, "no worker is ready; try again shortly", RETRY_S)
        if service.offer.quarantine.entries and not service.is_ready(application):
            raise self.not_served(application)
        if self._open + self._images.waiting >= self.limits.waiting_requests:
            raise ApiError(Reason.OVERLOADED, SENTENCES[Outcome.DROPPED_OVERLOAD], RETRY_S)
        return files

    def _checked(self, request: InferRequest, done: Done) -> Request:
        files = self._admitted(request)
        if self.rates is not None and request.charge is None:
            self.rates.charge(request, self._managed.engine)
        self.regions.fetch(request.inputs, files.limits)
        array = checked_input(files, request.inputs)
        wanted = checked_outputs(files, request.outputs, len(array))
        span, region = wanted.shared, None
        if span is not None:
            region = self.regions.target(span, 0 if wanted.classification else len(array) * files.output.row_bytes)
        terms, said = read_terms(files, request, wanted)
        slack_ns, client = terms.slack_ns, -1
        if "client_id" in request.parameters:
            client = self._askers.slot_of(request.parameters["client_id"], request.application)
            self._askers.hear(client, request, array, said)
        if said.is_end_to_end:
            slo_ns = slack_ns if said.slo_ns is None else said.slo_ns
            slack_ns = self._askers.left_ns(slo_ns, request, said, client)
        is_plain = client < 0 and said is NOTHING and span is None and not wanted.classification
        if request.form is not None and is_plain and array is request.inputs[0].array:
            request.form.terms = terms
        if request.spent_ns:
            slack_ns = max(1, slack_ns - request.spent_ns)

        def ended(entered: Request) -> None:
            nonlocal region
            target, region = region, None  # an ended request may be kept for a while; the descriptor must not be
            self.let_go(entered)
            if self.rates is not None and request.charge is not None:
                self.rates.settle(request.charge, entered, self._managed.engine)
            outcome = entered.outcome
            try:
                parameters = {} if client < 0 else self._askers.told(client)
                if outcome is Outcome.ON_TIME or outcome is Outcome.LATE:
                    response = answer(entered, files, request.id, wanted)
                    if request.id and self.feedback is not None:
                        self.feedback.keep(request.id, entered, files.output)
                    if parameters:
                        response.parameters.update(parameters)
                    if span is not None and target is not None:
                        put(target, span, response.outputs[0])
                    done(response)
                else:
                    done(self.count_refusal(refusal(entered, parameters)))
            except ApiError as error:  # the region is not what it was when the request was taken
                error.is_counted = True
                done(error)
            except Exception:  # the engine calls this, and the others of the batch come after
                log.exception("an answer cannot be given")
                done(ApiError(Reason.FAILED, SENTENCES[Outcome.FAILED]))

        return Request(
            request.application,
            array,
            slack_ns,
            ended,
            client=client,
            priority=terms.priority,
            pinned=request.version,
            min_accuracy=terms.min_accuracy,
            spent_ns=request.spent_ns,
        )


def _ignore(entered: Request) -> None: ...
