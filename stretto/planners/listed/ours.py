"""Our own planners."""

from __future__ import annotations

from dataclasses import replace

from stretto.planners.entry import Option, following

_SLACKS = Option("slack_steps", "integer", "50", "slacks told apart", 10, 2_000)
_MARGIN = Option("margin", "number", "0.1", "share of the slack that no batch may use", 0, 0.9, (0.0, 0.2))
_WORTH = "queries that the measured load is worth; 0: bursts unseen"
_PRIOR = Option("prior", "number", "3", _WORTH, 0, 1e6, rough=0.0)

# With coarse slacks a batch that takes nearly all of the SLO has no time left to gather in.
_FINE_SLACKS = replace(_SLACKS, tries=(150,), if_steady=True)

ENTRIES = (
    following(
        "judged",
        "at every load the candidate that did best in simulation under the conditions that were measured",
        "judged.planner:Judged",
        ports=("judge", "policies"),
    ),
    following(
        "shared_queue",
        "one queue for all workers; model and batch from a semi-Markov decision process, with what it expects",
        "shared_queue.planner:SharedQueue",
        _FINE_SLACKS,
        Option("max_late", "number", "0.001", "share of queries that may miss their deadline", 1e-6, 0.5),
        Option("noise", "number", "0.1", "coefficient of variation of service times", 0, 1, (0.0, 0.1, 0.2, 0.3)),
        _MARGIN,
        Option("caution", "number", "by trial", "times the load; 0: by trial", 0, 10, (0.93, 1.0, 1.06)),
        Option("rung", "number", "1.08", "loads this factor apart have policies", 1.001, 2, (1.03,), if_steady=True),
        Option("gathers", "flag", "false", "one worker waits for company while the others go on", later=(True,)),
        Option("leaps", "flag", "false", "a load that leapt is that since it did, not over 0.5 s", if_moving=(True,)),
        Option("gamma_shape", "number", "1", "of bursty arrivals; 1: Poisson", 0.001, 1),
        replace(_PRIOR, if_moving=(0.0,)),
        Option("queries", "integer", "50000", "that a policy is tried on", 1000, 100_000_000),
        ports=("policies", "stored", "trial"),
        tried="with one kind of worker",  # where there are more, `joint` is the same process with all of them
    ),
    following(
        "joint",
        "unequal workers as one process: each kind has its own table, and may leave queries for another kind",
        "joint.planner:Joint",
        _SLACKS,
        Option("noise", "number", "0.1", "coefficient of variation of service times", 0, 1, (0.0, 0.1, 0.2)),
        _MARGIN,
        Option("caution", "number", "1", "times the load", 0.1, 10, (0.93, 1.0, 1.06), if_moving=(1.3,)),
        _PRIOR,
        Option("fills", "flag", "false", "batches as large as few workers find them", later=(True,)),
        tried="if unequal",
    ),
    following(
        "placed",
        "one variant on each worker, by an integer program that reckons with what a change costs; queues are shared",
        "placed.planner:Placed",
        Option("headroom", "number", "1.4", "times the demand that workers are for", 1, 10, (1.1, 1.4, 1.8)),
        Option("noise", "number", "0", "coefficient of variation of service times", 0, 1, (0.0, 0.1)),
        replace(_MARGIN, default="0.05", tries=()),
        Option("caution", "number", "1", "times the load that tables are for", 0.1, 10, (1.0, 1.15)),
        _PRIOR,
        tried="where memory is short",
    ),
    following(
        "priced",
        "the most accurate variant that fits the slack, at a price of worker time that follows the load",
        "priced:Priced",
        Option("caution", "number", "1.05", "times the load: worker time is dearer", 0.1, 100, (0.9, 1.05, 1.2)),
        Option("margin", "number", "0.5", "share of the slack kept for what no profile knows", 0, 0.9, (0.0, 0.2, 0.5)),
        tried="always",
    ),
)
