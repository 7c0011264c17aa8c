"""What load to send where; everything in it is checked before the first request leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.client.address import DEFAULT_URL
from stretto.client.asking import MAX_DEADLINE_MS
from stretto.client.tensors import Array
from stretto.core.errors import StrettoError

MAX_RATE = 100_000.0  # requests/s; more than one process could send
MAX_SECONDS = 86_400.0
MAX_REQUESTS = 5_000_000  # some 40 bytes of memory each
MAX_ROWS = 10_000
MAX_CONNECTIONS = 10_000
KINDS = "poisson, uniform, gamma:SHAPE or burst:LOW:HIGH:PERIOD_S:SHARE"


@dataclass(frozen=True, eq=False)
class LoadSpec:
    """`kind` is one of KINDS: a burst goes from LOW to HIGH requests/s for SHARE of every PERIOD_S seconds.

    `rate` is the mean in requests/s; a burst has its own, and is scaled where a rate is given. `times_ns` gives the
    moments outright; `kind` is then but their name. `inputs` are queries, one a row; with `labels`, one a query,
    answers are checked. Without `deadline_ms` the application's SLO holds.
    """

    application: str
    inputs: Array
    labels: NDArray[np.int64] | None = None
    url: str = DEFAULT_URL
    rate: float | None = None
    seconds: float = 10.0
    kind: str = "poisson"
    times_ns: NDArray[np.int64] | None = None
    rows: int = 1
    deadline_ms: float | None = None
    version: str = ""
    min_accuracy: float | None = None
    connections: int = 512
    seed: int = 0
    token: str | None = None
    ca_file: Path | None = None
    grace_ms: float = 1_000.0

    def __post_init__(self) -> None:
        if not self.application:
            raise StrettoError("name the application that the load is for")
        check_range("the rate", self.rate, 0, MAX_RATE, "requests/s")
        check_range("the duration", self.seconds, 0, MAX_SECONDS, "seconds")
        check_range("the deadline", self.deadline_ms, 0, MAX_DEADLINE_MS, "ms")
        check_range("the grace", self.grace_ms, 0, MAX_DEADLINE_MS, "ms")
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise StrettoError(f"the least accuracy is {self.min_accuracy}; it is a fraction from 0 to 1")
        if np.ndim(self.inputs) < 1 or not len(self.inputs):
            raise StrettoError("a load needs inputs: an array of queries, one a row")
        if self.labels is not None and np.shape(self.labels) != np.shape(self.inputs)[:1]:
            raise StrettoError(f"there must be one label for each of the {len(self.inputs)} inputs")
        if not 1 <= self.rows <= MAX_ROWS:
            raise StrettoError(f"a request has from 1 to {MAX_ROWS} rows, not {self.rows}")
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise StrettoError(f"there may be from 1 to {MAX_CONNECTIONS} connections, not {self.connections}")
        if not 0 <= self.seed < 2**63:
            raise StrettoError(f"the seed is {self.seed}; it is a whole number from 0 on")


def check_range(what: str, value: float | None, above: float, highest: float, unit: str) -> None:
    """Refuses what is not above one bound and at most the other; NaN too."""
    if value is not None and not above < value <= highest:
        raise StrettoError(f"{what} is {value:g} {unit}; it must be above {above:g} and at most {highest:,.0f}")
