"""Tensors in memory that a client shares with this machine: Triton's extension of the protocol, off unless allowed.

A region is a part of a POSIX segment (a file of /dev/shm) that a client named beforehand. No memory of it is touched
here: the system copies an input out when its request is taken, and an output into it, and says so where the segment is
too short by then. So neither a client that writes on meanwhile nor one that cuts its segment short can do harm.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from stretto.api.budget import Budget
from stretto.api.datatypes import NUMPY_OF, join_bytes, parse_bytes
from stretto.api.errors import ApiError, Reason, bad_request, no_room, not_found, too_large
from stretto.api.limits import Limits
from stretto.api.messages import Array, InputTensor, OutputTensor, Span

FOLDER = "/dev/shm"  # where Linux has the segments of shm_open
MAX_KEY_BYTES = 255
MAX_PLACE = 2**62  # of an offset or a size: far beyond any memory, far below what would overflow
KEPT_BYTES = 1 << 20  # for answers, between one and the next
SEMAPHORES = "sem."  # named semaphores lie there too
OFF = "shared memory is not offered: the server was started without --shared-memory; send the values instead"
NO_CUDA = "memory of a GPU cannot be shared with this server: register system shared memory, or send the values"


@dataclass(eq=False)
class Region:
    """A part of a segment. The descriptor is closed when nobody has the region any more, also no request; and another
    one, that a mapping for answers has.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int

    def place(self, span: Span) -> int:
        """Where a span of the region begins in the segment. ApiError where it is not within the region."""
        if span.offset + span.byte_size > self.byte_size:
            raise bad_request(
                f"region {self.name} has {self.byte_size} bytes, but {span.byte_size} from {span.offset} on are wanted"
            )
        return self.offset + span.offset

    def read(self, span: Span) -> Array:
        """A copy, as bytes. One read: what is shorter than it was is seen by its length."""
        place = self.place(span)
        copied: Array = np.empty(span.byte_size, np.uint8)
        try:
            count = os.preadv(self.descriptor, [copied.data], place)
        except OSError as error:
            raise bad_request(f"region {self.name} cannot be read ({error.strerror})") from None
        if count != span.byte_size:
            raise self._is_short()
        return copied

    def write(self, span: Span, content: bytes | memoryview) -> None:
        """Never beyond the end of the segment, also where it is cut short in this very moment."""
        self.place(span)
        try:
            copy_into(self._mapped[span.offset : span.offset + len(content)], content)
        except ValueError:  # of mmap: the file is shorter than the region
            raise self._is_short() from None
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise self._is_short() from None
            raise bad_request(f"region {self.name} cannot be written ({error.strerror})") from None

    @cached_property
    def _mapped(self) -> memoryview:
        """From the first answer on. Only the system may touch it."""
        skipped = self.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self.descriptor, skipped + self.byte_size, offset=self.offset - skipped)
        return memoryview(mapped)[skipped:]

    def _is_short(self) -> ApiError:
        return bad_request(f"the segment of region {self.name} has become shorter than the region")


class TakenInput(Protocol):
    """What an application takes in one request."""

    @property
    def max_body_bytes(self) -> int: ...

    @property
    def max_batch(self) -> int: ...

    @property
    def max_elements(self) -> int: ...


class Regions:
    """Of all listeners together. On the event loop's thread only."""

    def __init__(self, limits: Limits, budget: Budget, is_allowed: bool = False):
        self.is_allowed = is_allowed
        self._limits, self._budget = limits, budget
        self._regions: dict[str, Region] = {}
        self.open = 0  # regions whose descriptor is open, also where only a request has them yet
        self.open_bytes = 0

    def register(self, name: Any, key: Any, offset: Any, byte_size: Any) -> None:
        """ApiError where there is no such segment, or it is not as large, or there are too many regions."""
        self._check_allowed()
        if not isinstance(name, str) or not 0 < len(name) <= self._limits.name_length or not name.isprintable():
            raise bad_request(f"a region needs a name of at most {self._limits.name_length} printable characters")
        if name in self._regions:
            raise bad_request(f"region {name} is registered already; unregister it first")
        offset, byte_size = _whole(offset, "offset", name), _whole(byte_size, "byte_size", name)
        if not byte_size:
            raise bad_request(f"byte_size of region {name} must be above 0")
        if self.open >= self._limits.shared_memory_regions:
            raise _is_full(f"there are {self.open} regions, and no more are allowed; unregister some")
        if self.open_bytes + byte_size > self._limits.shared_memory_bytes:
            raise _is_full(f"all regions together may have {self._limits.shared_memory_bytes} bytes; unregister some")
        descriptor = _opened(_segment(key), name)
        try:
            _check_segment(descriptor, name, offset + byte_size)
        except BaseException:
            os.close(descriptor)
            raise
        region = self._regions[name] = Region(name, key, offset, byte_size, descriptor)
        self.open += 1
        self.open_bytes += byte_size
        weakref.finalize(region, self._close, descriptor, byte_size)

    def unregister(self, name: str = "") -> None:
        """One, or all. As in Triton, one that is not there is no error. Requests that were taken keep theirs."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Of one, or of all. ApiError where the one is not there."""
        chosen = [self._named(name)] if name else self._regions.values()
        return [
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size} for each in chosen
        ]

    def fetch(self, tensors: Iterable[InputTensor], limits: TakenInput) -> None:
        """The values of inputs, copied out of their regions. ApiError where they are not there, or not as stated.

        While they are copied they are in the budget; from then on the request is, and nobody else runs between.
        """
        for tensor in tensors:
            if tensor.shared is None:
                continue
            size, most = tensor.shared.byte_size, min(self._limits.body_bytes, limits.max_body_bytes)
            if size > most:
                raise too_large(f"input {tensor.name} may have {most} bytes, not {size}")
            if not self._budget.take(size):
                raise no_room()
            try:
                self._fetch(tensor, tensor.shared, limits)
            finally:
                self._budget.used -= size

    def _fetch(self, tensor: InputTensor, span: Span, limits: TakenInput) -> None:
        region = self._used(span.region)
        count, shape = tensor.array.size, tensor.array.shape
        if tensor.datatype == "BYTES":
            most = limits.max_batch * limits.max_elements
            if count > most:
                raise too_large(f"input {tensor.name} may have {most} values, not {count}")
            tensor.array = parse_bytes(region.read(span).data, count, tensor.name).reshape(shape)
        else:
            dtype = NUMPY_OF[tensor.datatype]
            if span.byte_size != count * dtype.itemsize:
                raise bad_request(
                    f"input {tensor.name} of shape {list(shape)} needs {count * dtype.itemsize} bytes, "
                    f"and has {span.byte_size} of region {span.region}"
                )
            copied = region.read(span)
            if dtype == np.bool_ and count and copied.max() > 1:
                raise bad_request(f"input {tensor.name} is BOOL and must hold bytes 0 and 1")
            tensor.array = copied.view(dtype).reshape(shape)
        tensor.shared = None

    def target(self, span: Span, needed: int) -> Region:
        """The region that an output goes into. ApiError where `needed` bytes have no room there."""
        region = self._used(span.region)
        region.place(span)
        if needed > span.byte_size:
            raise bad_request(
                f"the output has {needed} bytes, but its place in region {span.region} has {span.byte_size}"
            )
        return region

    def _used(self, name: str) -> Region:
        self._check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise bad_request(f"there is no region {name[:60]!r}; register it first")
        return region

    def _named(self, name: str) -> Region:
        if name not in self._regions:
            raise not_found(f"there is no region {name[:60]!r}")
        return self._regions[name]

    def _check_allowed(self) -> None:
        if not self.is_allowed:
            raise ApiError(Reason.FORBIDDEN, OFF)

    def _close(self, descriptor: int, byte_size: int) -> None:
        os.close(descriptor)
        self.open -= 1
        self.open_bytes -= byte_size


def put(region: Region, span: Span, output: OutputTensor) -> None:
    """The output's values into its region, in the place of the answer; ApiError where they have no room there."""
    if output.datatype == "BYTES":
        content: bytes | memoryview = join_bytes(output.array.ravel().tolist())
    else:
        content = np.ascontiguousarray(output.array, NUMPY_OF[output.datatype]).reshape(-1).view(np.uint8).data
    if len(content) > span.byte_size:
        raise bad_request(
            f"the output has {len(content)} bytes, but its place in region {span.region} has {span.byte_size}"
        )
    region.write(span, content)
    output.shared = Span(span.region, span.offset, len(content))


def copy_into(mapped: memoryview, content: bytes | memoryview) -> None:
    """By the system, which reads a file into it. To write to a descriptor would make a segment longer that was cut
    short; to write to memory that is not there any more would end this process.
    """
    file, place = _scratch(), 0
    while place < len(content):
        place += os.pwrite(file, content[place:], place)
    place = 0
    while place < len(content):
        place += os.preadv(file, [mapped[place:]], place)
    if len(content) > KEPT_BYTES:
        os.ftruncate(file, 0)


@cache
def _scratch() -> int:
    """A file in memory, without a name. On the event loop's thread only."""
    return os.memfd_create("stretto-answers")


def span_in(parameters: Mapping[str, Any], tensor: str) -> Span | None:
    """Where the parameters of a tensor say that it lies; None: nowhere in shared memory."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str) or not region:
        raise bad_request(f"shared_memory_region of tensor {tensor} must be the name of a region")
    offset = _whole(parameters.get("shared_memory_offset", 0), "shared_memory_offset", tensor)
    return Span(region, offset, _whole(parameters.get("shared_memory_byte_size"), "shared_memory_byte_size", tensor))


def parameters_of(span: Span) -> dict[str, Any]:
    """What an answer says of an output that lies in shared memory."""
    parameters: dict[str, Any] = {"shared_memory_region": span.region, "shared_memory_byte_size": span.byte_size}
    return parameters | ({"shared_memory_offset": span.offset} if span.offset else {})


def placeholder(datatype: str, shape: tuple[int, ...]) -> Array:
    """In the place of values that are not read yet: of the right shape, and without memory of its own."""
    empty: Array = np.broadcast_to(np.zeros((), NUMPY_OF[datatype]), shape)
    return empty


def cuda_status(name: str = "") -> list[dict[str, Any]]:
    if name:
        raise not_found(f"there is no region {name[:60]!r}")
    return []


def refuse_cuda() -> None:
    raise bad_request(NO_CUDA)


def _whole(value: Any, what: str, whose: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PLACE:
        raise bad_request(f"{what} of {whose} must be a whole number of bytes, from 0 on")
    return value


def _segment(key: Any) -> str:
    """The file's name: as for shm_open, one slash before it may be written, and none within."""
    name = key.removeprefix("/") if isinstance(key, str) else ""
    is_plain = name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not is_plain or len(name.encode("utf-8", "replace")) > MAX_KEY_BYTES or name.startswith(SEMAPHORES):
        raise bad_request('key must be the plain name of a segment, as "/frames"')
    return name


def _opened(segment: str, name: str) -> int:
    """Only what lies there itself, never what a link points at; and a pipe would not be waited for."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(f"{FOLDER}/{segment}", flags)
    except (OSError, ValueError):
        raise bad_request(
            f"the segment of region {name} cannot be opened: it must be there, and the server may read and write it"
        ) from None


def _check_segment(descriptor: int, name: str, needed: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise bad_request(f"the key of region {name} names no segment")
    if status.st_size < needed:
        raise bad_request(f"the segment of region {name} has {status.st_size} bytes, but the region ends at {needed}")


def _is_full(sentence: str) -> ApiError:
    return ApiError(Reason.OVERLOADED, sentence)
