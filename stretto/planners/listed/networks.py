"""Planners that know clients and their networks."""

from __future__ import annotations

from stretto.planners.entry import Option, following

_QUEUEING = (0.0, 0.25, 0.5, 0.75, 1.0)  # that are tried where clients are known
_STEP = Option("step", "number", "0.25", "queries/s by which clients' rates are told apart", 0.01, 1000)
_HEADROOM = Option("headroom", "number", "1", "times the measured rates that capacity is for", 0.5, 10)


def _queueing(*tries: float) -> Option:
    return Option("queueing", "number", "1", "times its own latency that a batch may wait", 0, 4, tries)


ENTRIES = (
    following(
        "jellyfish",
        "each client on the worker whose variant its network and rate allow: models by annealing and search",
        "jellyfish.planner:Jellyfish",
        _queueing(*_QUEUEING),
        _STEP,
        _HEADROOM,
        Option("resident", "integer", "0", "variants that a worker holds at a time; 0: what its memory holds", 0, 4096),
        Option("annealing", "flag", "false", "choose models by annealing alone, as published"),
        Option("rescue", "flag", "false", "serve a client without a place where it is in time if it need not wait"),
        Option("tail", "flag", "true", "plan with the p99 of latencies, as published"),
        Option("nearest", "flag", "false", "prefetch the nearest sizes, as published, not those that followed before"),
        Option("filling", "flag", "true", "batches beyond the planned size where deadlines allow; false: as published"),
        replan_s=0.5,
        tried="where clients are known",
    ),
    following(
        "jellyfish_pool",
        "like jellyfish, but one queue for all workers, and variants as it grows, while that is more accurate",
        "jellyfish.planner:Jellyfish",
        _queueing(0.5, 0.75, 1.0),
        _STEP,
        _HEADROOM,
        Option("pool", "number", "1", "of the workers' throughput that one queue may use", 0.1, 1),
        preset={"pool": 1.0},
        replan_s=0.5,
        tried="where clients are known",
    ),
)
