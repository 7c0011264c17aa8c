"""Where a service is in its life. A file of its own, because whoever only asks need not load what serves."""

from __future__ import annotations

from enum import Enum

BEYOND_SHARE = "this client asks more than its share while others wait; ask less, or wait for the next plan"


class State(Enum):
    """Of the service as a whole."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"
