"""The event log of a server: what its dispatchers were told, when, and what they decided; and how plans came about. One
JSON list a line.

    ["stretto events", 5]
    ["session", planner, options, data_aware]              who plans
    ["made", g, now_ns, correction, deployment, plan, [view_ns, rates, alive, conditions, policies]]
                                                           a dispatcher; g numbers those of one log. Its first plan was
                                                           made from this view (rates and alive may be null)
    ["submit", g, now_ns, [application, deadline_ns, tag, client, class, priority, demand, more], ticket]
    ["cancel", g, now_ns, ticket, reason]      ["finished", g, now_ns, worker, ok, took_ns]
    ["joined" | "left", g, now_ns, worker]     ["advance", g, now_ns]       ["adopt", g, now_ns, plan]
    ["classified", g, now_ns, ticket, class]   ["reroute", g, now_ns, routes]
    ["enlarge", g, now_ns, deployment]         ["inherit", g, now_ns, estimates]
    ["decided", g, [decision, …]]
    ["planned", g, now_ns, telemetry, conditions, waiting, lines, clients, policies, plan]
        the planner was asked; waiting, lines and clients are null where it did not look, policies are
        [application, kind, workers, load, made] of those that came meanwhile, plan is null where it stayed the same
    ["under", g, now_ns, conditions]                       the plan in force under other conditions

A decision is ["run", worker, variant, [ticket, …], start_ns, expected_ns], ["drop", ticket, reason],
["load", worker, variant, start_ns, expected_ns, alone], ["unload", worker, variant] or ["answer", ticket].
"""

from __future__ import annotations

TITLE = "stretto events"
VERSION = 5
SESSION = "session"
MADE, SUBMIT, CANCEL, FINISHED = "made", "submit", "cancel", "finished"
JOINED, LEFT, ADVANCE, ADOPT, DECIDED = "joined", "left", "advance", "adopt", "decided"
CLASSIFIED, PLANNED, UNDER = "classified", "planned", "under"
REROUTE, ENLARGE, INHERIT = "reroute", "enlarge", "inherit"
EVENTS = (
    *(SESSION, MADE, SUBMIT, CANCEL, FINISHED, CLASSIFIED, JOINED, LEFT, ADVANCE, ADOPT, REROUTE, ENLARGE, INHERIT),
    *(DECIDED, PLANNED, UNDER),
)
