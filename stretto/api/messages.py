"""What passes between a translator and the data plane: a request, a response, and the tensors in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from stretto.api.accounts import Charge

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies in shared memory: in the region of that name, from `offset` on."""

    region: str
    offset: int
    byte_size: int


@dataclass(slots=True)
class InputTensor:
    """`array` has the shape that the client stated, batch included. BYTES is an object array of bytes.

    `encoding` is of images, where the client names one: jpeg, png. While `shared` is there, the values are in shared
    memory and `array` holds nothing but the shape.
    """

    name: str
    datatype: str  # FP32, INT64, BYTES, … as the protocol names them
    array: Array
    encoding: str = ""
    shared: Span | None = None


@dataclass(slots=True)
class WantedOutput:
    """`classification`: give so many best classes instead of the numbers; 0: the numbers."""

    name: str
    classification: int = 0
    binary: bool = False  # HTTP only: the translator's own
    shared: Span | None = None  # where the values go, in the place of the answer


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a request asks besides its tensor (terms.py): all of it, where it says nothing of its client and gets
    numbers for its one tensor, as that came.
    """

    files: ApplicationFiles
    version: str
    wanted: WantedOutput
    slack_ns: int
    priority: int
    min_accuracy: float
    ready: dict[tuple[Any, ...], bytes] = field(default_factory=dict)  # what a translator has ready for answers


class Form(Protocol):
    """What requests share that say the same."""

    terms: Terms | None  # once one of them was taken


@dataclass(slots=True)
class InferRequest:
    """`version` pins a variant; "" leaves the choice to Stretto. `outputs` empty: all of them.

    `parameters` are as the client gave them: bool, int, float or str values; the data plane checks those it knows, and
    changes none: several requests may share them.
    """

    application: str
    inputs: list[InputTensor]
    version: str = ""
    id: str = ""
    outputs: list[WantedOutput] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    traceparent: str = ""  # of the caller's trace, where there is one
    sent_bytes: int = 0  # of the whole request, as it came
    begun_ns: int | None = None  # when its first byte came, on the monotonic clock; None: nobody saw that
    spent_ns: int = 0  # since it came, before it is entered: taken off what it has until its deadline
    account: bytes = b""  # whose token it came with
    charge: Charge | None = None  # what it paid, where clients are limited
    form: Form | None = None  # where others may come that say the same


@dataclass(slots=True)
class OutputTensor:
    """`array` is the client's own copy."""

    name: str
    datatype: str
    array: Array
    binary: bool = False
    shared: Span | None = None  # the values were written there


@dataclass(slots=True)
class InferResponse:
    """`parameters` are those of docs/serving.md; every value is a str, a float or an int."""

    application: str
    version: str
    id: str
    outputs: list[OutputTensor]
    parameters: dict[str, Any]
