"""Planners that deal queries to fixed instances: edge RL and what it compares itself with."""

from __future__ import annotations

from stretto.planners.entry import Option, following

ENTRIES = (
    following(
        "edge_rl",
        "queries dealt to fixed instances at random, by weights that a learned policy sets from their queues",
        "edge_rl.planner:EdgeRL",
        Option("policy", "file", "one that fits any instances", "a file of stretto train"),
        replan_s=0.02,
    ),
    following(
        "leave_it",
        "one queue; a quick instance leaves queries for an accurate one as long as that is in time",
        "leave_it:LeaveIt",
        Option("runs", "number", "2", "of a better instance that fit the slack of a query left for it", 0, 100),
        replan_s=None,
        tried="with several kinds of worker",  # of one kind, none is better to leave a query for
    ),
    following(
        "lightweight",
        "every worker runs the quickest variant, with a short queue of its own (edge RL's LW)",
        "edge_rl.baselines:Lightweight",
        replan_s=1.0,
    ),
    following(
        "heavyweight",
        "every worker runs the most accurate variant, with a short queue of its own (edge RL's HW)",
        "edge_rl.baselines:Heavyweight",
        Option("early", "flag", "false", "drop what will be late (HW-E)"),
        replan_s=1.0,
    ),
    following(
        "single_queue",
        "one queue, one query at a time, each instance with its own variant (edge RL's SQ)",
        "edge_rl.baselines:SingleQueue",
        Option("prefer_accurate", "flag", "false", "an accurate instance first, not the one that is idle longest"),
        replan_s=None,
    ),
    following(
        "stationary",
        "as much to accurate instances as an M/D/1 queue at the present load allows (edge RL's SA)",
        "edge_rl.baselines:Stationary",
        Option("late", "number", "0.02", "share of an instance's queries that may be late", 1e-6, 0.5),
        Option("tenths", "flag", "false", "whole tenths of the queries for accurate instances, as published"),
        replan_s=1.0,
    ),
    following(
        "infaas",
        "each 0.1 s all queries to the model with the least work waiting (INFaaS as edge RL has it)",
        "edge_rl.baselines:Infaas",
    ),
)
