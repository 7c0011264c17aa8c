"""Planners that choose a variant for the load: RAMSIS and what it compares itself with, SlackFit."""

from __future__ import annotations

from stretto.planners.entry import Option, following

ENTRIES = (
    following(
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
        Option("gamma_shape", "number", "0", "of bursty arrivals; 1: Poisson; 0: as measured", 0, 1),
        replan_s=0.5,
        ports=("policies", "stored"),
        tried="where it may gain",
    ),
    following(
        "slackfit",
        "the variant and batch whose latency is nearest below the slack of the most urgent query",
        "slackfit:SlackFit",
        Option("buckets", "integer", "32", "into which latencies within the SLO are divided", 1, 4096),
        replan_s=None,
        tried="always",
    ),
    following(
        "jellyfish_plus",
        "the most accurate variant whose throughput covers the load, as RAMSIS compares itself with",
        "jellyfish_plus:JellyfishPlus",
        replan_s=0.5,
        tried="always",
    ),
    following(
        "model_switching",
        "the most accurate variant whose p99 response, measured by simulation first, is within the SLO at the load",
        "model_switching:ModelSwitching",
        replan_s=0.5,
        ports=("responses",),
    ),
)
