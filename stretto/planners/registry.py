"""The planners by name, with the options that a scenario may give them. One place to look a name up, and nothing more.

Options come in the units of the edge: one that ends in _ms becomes the planner's field that ends in _ns. An option that
is not given keeps the planner's own default. Planners are imported when they are made, so that names come cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from stretto.core.errors import StrettoError
from stretto.core.verdict import GivenValue, OptionValue

if TYPE_CHECKING:
    from stretto.core.view import Planner
    from stretto.planners.ports import Ports

NS_PER_MS = 1_000_000
DEFAULT_PLANNER = "shared_queue"  # of a server


@dataclass(frozen=True)
class Option:
    """One option of a planner, with the bounds of a number."""

    name: str
    kind: Literal["flag", "integer", "number", "file"]
    default: str  # in words, for people
    what: str
    low: float = 0
    high: float = 0
    tries: tuple[OptionValue, ...] = ()  # values that are worth trying
    rough: OptionValue | None = None  # makes plans quicker, and is near enough to compare them by at first


@dataclass(frozen=True)
class Entry:
    """A name, what stands behind it, and how it is made."""

    name: str
    what: str
    where: str  # MODULE:FACTORY, within stretto.planners
    options: tuple[Option, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=dict)
    replan_s: float | None = None
    chooses_variants: bool = False  # among all of an application, so that none can be named
    by_windows: bool = False  # queries wait for the next plan, so SLOs bound how long that may take
    ports: tuple[str, ...] = ()  # which of the Ports it takes, by name
    tried: Literal[
        "",
        "always",
        "with one kind of worker",
        "if unequal",
        "where memory is short",
        "with one variant each",
        "where it may gain",
        "where clients are known",
    ] = ""  # as a candidate, by the judge

    def make(
        self,
        options: Mapping[str, GivenValue] | None = None,
        variants: Mapping[str, str] | None = None,
        ports: Ports | None = None,
    ) -> Planner:
        """The planner, with its own defaults for what `options` leave out.

        `variants` names the variant of an application. Of `ports` it gets those that it takes.
        """
        fields: dict[str, Any] = dict(self.preset)
        known = [option.name for option in self.options]
        for name, value in (options or {}).items():
            if name not in known:
                raise StrettoError(
                    f"planner {self.name} has no option {name[:40]}; it has {', '.join(known) or 'none'}"
                )
            if name.endswith("_ms") and not isinstance(value, str):
                fields[name.removesuffix("_ms") + "_ns"] = round(value * NS_PER_MS)
            else:
                fields[name] = value
        if variants and self.chooses_variants:
            raise StrettoError(f"planner {self.name} chooses among all variants; name none, or take another planner")
        if variants:
            fields["variants"] = dict(variants)
        if ports is not None:
            fields |= {name: getattr(ports, name) for name in self.ports}
        module, _, factory = self.where.partition(":")
        planner: Planner = getattr(import_module(f"stretto.planners.{module}"), factory)(**fields)
        return planner


_SLACKS = Option("slack_steps", "integer", "50", "slacks told apart", 10, 2_000)
_MARGIN = Option("margin", "number", "0.1", "share of the slack that no batch may use", 0, 0.9, (0.0, 0.2))
_WARY = Option("wary", "flag", "true", "take workers for slower while queries are lost", tries=(False,))
_WORTH = "queries that the measured load is worth; 0: bursts unseen"
_PRIOR = Option("prior", "number", "3", _WORTH, 0, 1e6, rough=0.0)

_BATCH_AWARE = Option("batch_aware", "flag", "false", "give up a head whose slack would force a much smaller batch")

_WHEN_GATHERED = Option("when_gathered", "flag", "false", "start also once βλ queries are gathered (section 4.3 (a))")
_SUB_CLUSTERS = Option("sub_clusters", "integer", "1", "split applications and workers into so many parts", 1, 1000)

_AHEAD = Option("ahead_ms", "number", "5", "how long before a worker is free its next batch is sent", 0, 1000)

_DATA_AWARE = Option("data_aware", "flag", "", "expect accuracy from the evidence of each query's class")
_SHORT_CIRCUIT = Option("short_circuit", "flag", "", "answer from evidence where that is worth more")
_WINDOW_OPTIONS = tuple(replace(option, default="false") for option in (_DATA_AWARE, _SHORT_CIRCUIT))
_CAUTION = "share that late answers lose in planning, if evidence does nearly as well"
_GROUP_OPTIONS = (
    Option("exact_groups", "integer", "6", "up to so many groups the schedule is the best one", 0, 12),
    Option("max_group", "integer", "a worker's even share", "the largest group; 0: the default", 0, 4096),
    Option("caution", "number", "0.9 (grouped: 0)", _CAUTION, 0, 1),
)


def _window(name: str, what: str, factory: str, *options: Option) -> Entry:
    """A planner that schedules what waits, window by window."""
    where = f"sneakpeek.planner:{factory}"
    return Entry(name, what, where, options, replan_s=0.1, chooses_variants=True, by_windows=True)


def _following(name: str, what: str, where: str, *options: Option, replan_s: float | None = 0.1, **rest: Any) -> Entry:
    """A planner that chooses among all variants, and follows the load."""
    return Entry(name, what, where, options, replan_s=replan_s, chooses_variants=True, **rest)


ENTRIES = (
    _following(
        "judged",
        "at every load the candidate that did best in simulation under the conditions that were measured",
        "judged:Judged",
        ports=("judge", "policies"),
    ),
    _following(
        "shared_queue",
        "one queue for all workers; model and batch from a semi-Markov decision process, with what it expects",
        "shared_queue.planner:SharedQueue",
        _SLACKS,
        Option("max_late", "number", "0.001", "share of queries that may miss their deadline", 1e-6, 0.5),
        Option("noise", "number", "0.1", "coefficient of variation of service times", 0, 1, (0.0, 0.1, 0.2, 0.3)),
        _MARGIN,
        Option("caution", "number", "by trial", "times the load; 0: by trial", 0, 10, (0.93, 1.0, 1.06)),
        _WARY,
        Option("gamma_shape", "number", "1", "of bursty arrivals; 1: Poisson", 0.001, 1),
        _PRIOR,
        Option("queries", "integer", "50000", "that a policy is tried on", 1000, 100_000_000),
        ports=("policies", "stored", "trial"),
        tried="with one kind of worker",  # where there are more, `joint` is the same process with all of them
    ),
    _following(
        "joint",
        "unequal workers as one process: each kind has its own table, and may leave queries for another kind",
        "joint.planner:Joint",
        _SLACKS,
        Option("noise", "number", "0.1", "coefficient of variation of service times", 0, 1, (0.0, 0.1, 0.2)),
        _MARGIN,
        Option("caution", "number", "1", "times the load", 0.1, 10, (0.93, 1.0, 1.06)),
        _PRIOR,
        tried="if unequal",
    ),
    _following(
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
    _following(
        "priced",
        "the most accurate variant that fits the slack, at a price of worker time that follows the load",
        "priced:Priced",
        Option("caution", "number", "1.05", "times the load: worker time is dearer", 0.1, 100, (0.9, 1.05, 1.2)),
        Option("margin", "number", "0.5", "share of the slack kept for what no profile knows", 0, 0.9, (0.0, 0.2, 0.5)),
        _WARY,
        tried="always",
    ),
    Entry(
        "symphony",
        "deferred batches: as late as the deadline allows, earliest deadline first",
        "symphony:Symphony",
        (_BATCH_AWARE, _WHEN_GATHERED, _SUB_CLUSTERS),
        {"deferred": True},
        tried="with one variant each",
    ),
    Entry(
        "symphony_batch_aware",
        "symphony with batch-aware pruning, beyond the paper",
        "symphony:Symphony",
        (_WHEN_GATHERED, _SUB_CLUSTERS),
        {"deferred": True, "batch_aware": True},
        tried="always",
    ),
    Entry(
        "symphony_eager",
        "the work-conserving twin: the same, but a batch starts as soon as a worker is free",
        "symphony:Symphony",
        (_BATCH_AWARE, _SUB_CLUSTERS),
        {"deferred": False},
    ),
    Entry(
        "clockwork",
        "as published: the batch that must start soonest, whatever its size, sent shortly before a worker is free",
        "clockwork:Clockwork",
        (_AHEAD, Option("margin_ms", "number", "5", "how long before its deadline a batch is to end", 0, 1000)),
    ),
    Entry(
        "clockwork_filling",
        "clockwork with batches filled as far as the head's deadline allows, beyond what was published",
        "clockwork:Clockwork",
        (_AHEAD, Option("powers_of_two", "flag", "false", "batch sizes 1, 2, 4, … only")),
        {"filling": True},
        tried="with one variant each",
    ),
    Entry(
        "nexus",
        "load packed onto workers each epoch, queries dealt to them by the packed shares",
        "nexus:Nexus",
        replan_s=30.0,
    ),
    Entry(
        "clipper",
        "first come, eager, nothing dropped; the batch cap grows by steps and backs off",
        "clipper:Clipper",
        (
            Option("step", "number", "1", "added to the cap by each batch within the SLO", 0.001, 4096),
            Option("backoff", "number", "0.9", "times the cap after a batch beyond the SLO", 0.01, 0.999),
        ),
    ),
    Entry(
        "fixed_delay",
        "waits for a preferred batch, but never longer than a fixed delay",
        "fixed_delay:FixedDelay",
        (
            Option("preferred_batch", "integer", "max_batch", "start once so many are gathered", 1, 4096),
            Option("max_batch", "integer", "what fits in half the SLO", "the largest batch", 1, 4096),
            Option(
                "delay_ms", "number", "delay_share of the SLO", "start once the head has waited so long", 0, 3600000
            ),
            Option("delay_share", "number", "0.25", "the delay as a share of the SLO", 0, 1),
        ),
        tried="with one variant each",
    ),
    _following(
        "ramsis",
        "model selection from a Markov decision process per worker, with the accuracy and lateness it promises",
        "ramsis.planner:Ramsis",
        Option("slack_steps", "integer", "100", "slacks told apart; 0: by the variants' latencies", 0, 10000),
        Option("max_queue", "integer", "32", "the longest queue of a worker told apart", 1, 512),
        Option("variable", "flag", "false", "choose the batch too, not always all that wait"),
        Option("drop", "flag", "false", "queries may be dropped (section 4.3.1)"),
        Option("shortest", "flag", "false", "queries go to the shortest queue (appendix I), not in turn"),
        Option("per_decision", "flag", "false", "reward a decision, as printed, not a query"),
        Option("every_batch", "flag", "false", "keep variants that are best at some batch, not only at one query"),
        Option("gamma_shape", "number", "1", "of bursty arrivals; 1: Poisson", 0.001, 1),
        replan_s=0.5,
        ports=("policies", "stored"),
        tried="where it may gain",
    ),
    _following(
        "proteus",
        "an integer program places one variant on each worker and routes by shares, for the demand of past windows",
        "proteus:Proteus",
        Option("headroom", "number", "1.05", "times the demand that workers are planned for", 0.2, 10),
        replan_s=10.0,
        tried="if unequal",
    ),
    _following(
        "slackfit",
        "the variant and batch whose latency is nearest below the slack of the most urgent query",
        "slackfit:SlackFit",
        Option("buckets", "integer", "32", "into which latencies within the SLO are divided", 1, 4096),
        replan_s=None,
        tried="always",
    ),
    _following(
        "jellyfish",
        "each client on the worker whose variant its network and rate allow: models by annealing and search",
        "jellyfish.planner:Jellyfish",
        Option("queueing", "number", "1", "times its own latency that a batch may wait", 0, 4, (0.0, 0.5, 1.0)),
        Option("step", "number", "1", "queries/s by which clients' rates are told apart", 0.01, 1000),
        Option("headroom", "number", "1", "times the measured rates that capacity is for", 0.5, 10, (1.0, 1.25)),
        Option("resident", "integer", "0", "variants that a worker holds at a time; 0: what its memory holds", 0, 4096),
        Option("annealing", "flag", "false", "choose models by annealing alone, as published"),
        Option("rescue", "flag", "false", "serve a client without a place where it is in time if it need not wait"),
        Option("tail", "flag", "true", "plan with the p99 of latencies, as published"),
        Option("nearest", "flag", "false", "prefetch the nearest sizes, as published, not those that followed before"),
        replan_s=0.5,
        tried="where clients are known",
    ),
    _following(
        "jellyfish_plus",
        "the most accurate variant whose throughput covers the load, as RAMSIS compares itself with",
        "jellyfish_plus:JellyfishPlus",
        replan_s=0.5,
        tried="always",
    ),
    _following(
        "model_switching",
        "the most accurate variant whose p99 response, measured by simulation first, is within the SLO at the load",
        "model_switching:ModelSwitching",
        replan_s=0.5,
        ports=("responses",),
    ),
    _following(
        "edge_rl",
        "queries dealt to fixed instances at random, by weights that a learned policy sets from their queues",
        "edge_rl.planner:EdgeRL",
        Option("policy", "file", "one that fits any instances", "a file of stretto train"),
    ),
    _following(
        "leave_it",
        "one queue; a quick instance leaves queries for an accurate one as long as that is in time",
        "leave_it:LeaveIt",
        Option("runs", "number", "2", "of a better instance that fit the slack of a query left for it", 0, 100),
        replan_s=None,
        tried="if unequal",
    ),
    _following(
        "lightweight",
        "every worker runs the quickest variant, with a short queue of its own (edge RL's LW)",
        "edge_rl.baselines:Lightweight",
        replan_s=1.0,
    ),
    _following(
        "heavyweight",
        "every worker runs the most accurate variant, with a short queue of its own (edge RL's HW)",
        "edge_rl.baselines:Heavyweight",
        Option("early", "flag", "false", "drop what will be late (HW-E)"),
        replan_s=1.0,
    ),
    _following(
        "single_queue",
        "one queue, one query at a time, each instance with its own variant (edge RL's SQ)",
        "edge_rl.baselines:SingleQueue",
        Option("prefer_accurate", "flag", "false", "an accurate instance first, not the one that is idle longest"),
        replan_s=None,
    ),
    _following(
        "stationary",
        "as much to accurate instances as an M/D/1 queue at the present load allows (edge RL's SA)",
        "edge_rl.baselines:Stationary",
        Option("late", "number", "0.02", "share of an instance's queries that may be late", 1e-6, 0.5),
        Option("tenths", "flag", "false", "whole tenths of the queries for accurate instances, as published"),
        replan_s=1.0,
    ),
    _following(
        "infaas",
        "each 0.1 s all queries to the model with the least work waiting (INFaaS as edge RL has it)",
        "edge_rl.baselines:Infaas",
    ),
    _window(
        "sneakpeek",
        "each window scheduled in groups by application and class, by evidence of each query's class",
        "SneakPeek",
        replace(_DATA_AWARE, default="true"),
        replace(_SHORT_CIRCUIT, default="true"),
        Option("split_classes", "flag", "true", "groups by application and estimated class, not application alone"),
        *_GROUP_OPTIONS,
    ),
    _window(
        "grouped",
        "each window scheduled in groups by application (SneakPeek without evidence)",
        "grouped",
        *_WINDOW_OPTIONS,
        *_GROUP_OPTIONS,
    ),
    _window(
        "lo_priority",
        "each window's queries by priority, each on the variant that is worth most then",
        "lo_priority",
        *_WINDOW_OPTIONS,
    ),
    _window(
        "lo_edf",
        "each window's queries by deadline, each on the variant that is worth most then",
        "lo_edf",
        *_WINDOW_OPTIONS,
    ),
    _window(
        "max_acc_edf",
        "each window's queries by deadline, each on the most accurate variant",
        "max_acc_edf",
        *_WINDOW_OPTIONS,
    ),
)

NAMES = tuple(entry.name for entry in ENTRIES)


def planner_entry(name: str) -> Entry:
    """The entry of a name, or of a user's own planner as MODULE:ATTRIBUTE; a wrong name is refused."""
    if ":" in name:
        return user_entry(name)
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise StrettoError(f"there is no planner {name[:40]!r}; there are {', '.join(NAMES)}, or MODULE:FUNCTION")


def user_entry(reference: str) -> Entry:
    """A planner that is no part of this package, found and made once, so that mistakes show at once."""
    from stretto.planners.user import UserPlanner

    planner = UserPlanner(reference)
    return Entry(
        reference,
        "a planner of the user's own",
        "user:UserPlanner",
        preset={"reference": reference},
        replan_s=planner.replan_s,
        chooses_variants=True,
    )
