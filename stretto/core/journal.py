"""The event log of a dispatcher: what it was told, when, and what it decided. One JSON list a line.

    ["stretto events", 2]
    ["made", g, now_ns, correction, deployment, plan]      a dispatcher; g numbers those of one log
    ["submit", g, now_ns, [application, deadline_ns, tag, client, class, priority, demand, more], ticket]
    ["cancel", g, now_ns, ticket, reason]      ["finished", g, now_ns, worker, ok, took_ns]
    ["joined" | "left", g, now_ns, worker]     ["advance", g, now_ns]       ["adopt", g, now_ns, plan]
    ["classified", g, now_ns, ticket, class]   ["reroute", g, now_ns, routes]
    ["enlarge", g, now_ns, deployment]         ["inherit", g, now_ns, estimates]
    ["decided", g, [decision, …]]

A decision is ["run", worker, variant, [ticket, …], start_ns, expected_ns], ["drop", ticket, reason],
["load", worker, variant, start_ns, expected_ns, alone], ["unload", worker, variant] or ["answer", ticket].
"""

from __future__ import annotations

TITLE = "stretto events"
VERSION = 2
MADE, SUBMIT, CANCEL, FINISHED = "made", "submit", "cancel", "finished"
JOINED, LEFT, ADVANCE, ADOPT, DECIDED = "joined", "left", "advance", "adopt", "decided"
CLASSIFIED, REROUTE, ENLARGE, INHERIT = "classified", "reroute", "enlarge", "inherit"
EVENTS = (
    *(MADE, SUBMIT, CANCEL, FINISHED, CLASSIFIED, JOINED, LEFT, ADVANCE, ADOPT, REROUTE, ENLARGE, INHERIT),
    DECIDED,
)
