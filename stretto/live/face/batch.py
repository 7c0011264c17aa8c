"""The end of a batch of rows, compiled: what its front ends are told, and what is measured of it, in one pass.

In Python the arrays of a batch of forty queries cost two dozen calls of NumPy, most of the time of scheduling.
"""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled

SLOT = 0xFFFFFFFF  # of a ticket
ON_TIME, LATE = 0, 1  # Outcomes, as plain numbers


@compiled
def bucket(edges: Any, value: int) -> int:
    """Of a histogram: the first whose upper edge is not below the value."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def end_rows(
    rows: Any,
    tickets: Any,
    taken: Any,
    ended: Any,
    times: Any,
    edges: Any,
    slack_edges: Any,
    counts: Any,
    slack_counts: Any,
) -> int:
    """Takes those of a batch that are rows still: they go into `taken` and `ended`, in order, with their positions in
    `taken.ticket`, and are rows no more. Returns how many there are.

    `times`: when it started, how long it ran, now; behind them come sums of waits, of times in all and of slack.
    `counts` are two histograms by `edges`, of waits and of times in all.
    """
    started_ns, run_ns, now_ns = times[0], times[1], times[2]
    count = 0
    for position in range(len(tickets)):
        slot = tickets[position] & SLOT
        if rows[slot].ticket != tickets[position]:
            continue
        taken[count] = rows[slot]
        taken[count].ticket = position
        rows[slot].ticket = -1
        arrival_ns, deadline_ns = taken[count].arrival_ns, taken[count].deadline_ns
        end = ended[count]
        end.number = taken[count].number
        end.queue_ns = started_ns - arrival_ns
        end.run_ns = run_ns
        end.outcome = ON_TIME if now_ns <= deadline_ns else LATE
        counts[0, bucket(edges, started_ns - arrival_ns)] += 1
        counts[1, bucket(edges, now_ns - arrival_ns)] += 1
        slack_counts[bucket(slack_edges, deadline_ns - now_ns)] += 1
        times[3] += started_ns - arrival_ns
        times[4] += now_ns - arrival_ns
        times[5] += deadline_ns - now_ns
        count += 1
    return count


@compiled
def write_answers(memory: Any, taken: Any, behind: Any, answers: Any, front: int) -> bool:
    """The bytes of each answer to where its front end looks for it; false, and no more, where that is outside."""
    width = answers.shape[1]
    for number in range(len(taken)):
        if taken[number].front != front:
            continue
        place = taken[number].place + behind[taken[number].size]
        if place < 0 or place + width > len(memory):
            return False
        memory[place : place + width] = answers[taken[number].ticket]
    return True
