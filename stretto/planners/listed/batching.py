"""Planners that are told the variant, and decide when batches start: Symphony and what it compares itself with."""

from __future__ import annotations

from stretto.planners.entry import Entry, Option

_EXPIRY_ONLY = Option("expiry_only", "flag", "false", "drop queries only once they can no longer make it")
_WHEN_GATHERED = Option("when_gathered", "flag", "false", "start also once βλ queries are gathered (section 4.3 (a))")
_SUB_CLUSTERS = (
    Option("sub_clusters", "integer", "1", "split applications and workers into so many parts", 1, 1000),
    Option("epoch_s", "number", "120", "with sub_clusters: how often the partition follows the load", 1, 86400),
    Option("max_rate", "number", "no limit", "with sub_clusters: queries/s that one of them takes", 1, 1e9),
    Option("max_moves", "integer", "a tenth", "with sub_clusters: applications that may move in an epoch", 0, 65536),
    Option("at_once", "integer", "1", "with sub_clusters: workers that load other models at a time", 1, 65536),
)
_ROOM = Option("room", "number", "1", "times the workers that floors are for", 0.5, 2, later=(0.94, 0.97, 1.03, 1.06))
_AHEAD = Option("ahead_ms", "number", "5", "how long before a worker is free its next batch is sent", 0, 1000)

ENTRIES = (
    Entry(
        "symphony",
        "deferred batches: as late as the deadline allows, earliest deadline first",
        "symphony:Symphony",
        (_EXPIRY_ONLY, _WHEN_GATHERED, *_SUB_CLUSTERS),
        {"deferred": True},
        tried="with one variant each",
    ),
    Entry(
        "symphony_batch_aware",
        "symphony, but heads are given up for the smallest batch that keeps up; beyond the paper",
        "symphony:Symphony",
        (_WHEN_GATHERED, _ROOM, *_SUB_CLUSTERS),
        {"deferred": True, "batch_aware": True},
        tried="always",
    ),
    Entry(
        "symphony_eager",
        "the work-conserving twin: the same, but a batch starts as soon as a worker is free",
        "symphony:Symphony",
        (_EXPIRY_ONLY, *_SUB_CLUSTERS),
        {"deferred": False},
        tried="with one variant each",
    ),
    Entry(
        "short_queue",
        "batches that keep up start at once, and heads are given up that would make batches small; ours",
        "short_queue:ShortQueue",
        (
            Option("gathered", "number", "0.85", "start with so much of the staggered batch", 0.01, 1, (0.8, 0.9)),
            Option("longest", "number", "2.5", "staggered batches that may wait", 1, 1000, later=(4.0,)),
            Option("crowded", "number", "2", "batches waiting from where heads are given up", 0, 1000, (1.7, 2.3, 3.0)),
        ),
        tried="with one variant each",
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
        (
            Option("filling", "flag", "false", "batches of what has gathered, and not as planned"),
            Option("front_ends", "integer", "1", "so many deal queries out, each for itself", 1, 1000),
        ),
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
)
