"""What becomes of front ends' queries that are rows of numbers, compiled: each step of a batch is one pass over it.

They come in a message, enter the table of rows, are given to a worker, and end. In Python each of these steps costs a
dozen calls of NumPy or an object for each row: together that was most of the time of scheduling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.live.face.memory import ALIGNMENT
from stretto.live.meters import count_end

SLOT = 0xFFFFFFFF  # of a ticket
ON_TIME, LATE = 0, 1  # Outcomes, as plain numbers
MAX_LEFT_NS = 3_600 * 10**9
NO_SUCH_SIZE = 1 << 62  # more than any memory has


@compiled
def read_submitted(
    records: Any, is_plain: Any, numbers: Any, needs: Any, first_sizes: Any, limits: Any, rows: Any, entering: Any
) -> int:
    """Plain queries of a message, as rows without tickets; their applications, deadlines and priorities go into
    `entering`, as a dispatcher takes them. Returns how many there are; -1 where the numbers of the requests do not
    ascend.

    What is anything but plain, or wrong, is no longer marked in `is_plain`. `limits`: now, how long the message was on
    its way, how much memory the front end has (-1: none that is seen here), its number, and that of its last request.
    """
    now_ns, transit_ns, memory, front, last = limits
    count = 0
    for position in range(len(records)):
        record = records[position]
        number = np.int64(record.number)
        if number <= last:
            return -1
        last = number
        application, size, place = record.application, record.size, record.place
        if not is_plain[position]:
            continue
        is_plain[position] = False
        if record.rows != 1 or record.priority < 0 or application >= len(numbers) or size >= needs.shape[1]:
            continue
        need = needs[application, size]
        if numbers[application] < 0 or need >= NO_SUCH_SIZE:
            continue
        if memory >= 0 and (place < 0 or place % ALIGNMENT or place > memory - need):
            continue
        is_plain[position] = True
        row = rows[count]
        row.number = record.number
        row.arrival_ns = now_ns - transit_ns - min(max(record.spent_ns, 0), MAX_LEFT_NS)
        row.deadline_ns = now_ns + max(min(max(record.left_ns, 0), MAX_LEFT_NS) - transit_ns, 1)
        row.place = place if memory >= 0 else -1
        row.front = front
        row.application = application
        row.size = size + first_sizes[application]
        row.priority = record.priority
        entering[0, count] = numbers[application]
        entering[1, count] = row.deadline_ns
        entering[2, count] = record.priority
        count += 1
    return count


@compiled
def enter_rows(table: Any, tickets: Any, rows: Any, first: int) -> int:
    """From the row `first` on into the table, each at its ticket's slot. Returns how far it came: it stops before a
    slot that is taken, or that the table does not have.
    """
    for position in range(first, len(tickets)):
        slot = tickets[position] & SLOT
        if slot >= len(table) or table[slot].ticket >= 0:
            return position
        table[slot] = rows[position]
        table[slot].ticket = tickets[position]
    return len(tickets)


@compiled
def are_rows(table: Any, tickets: Any) -> bool:
    """Every one of these tickets is in the table."""
    for ticket in tickets:
        slot = ticket & SLOT
        if slot >= len(table) or table[slot].ticket != ticket:
            return False
    return True


@compiled
def place_rows(table: Any, tickets: Any, first_size: int, places: Any) -> bool:
    """Where the rows of a batch lie, for their worker; sizes are counted from `first_size` on. False where one is not
    there any more, or lies nowhere, or has an earlier size.
    """
    for position in range(len(tickets)):
        row = table[tickets[position] & SLOT]
        if row.ticket != tickets[position] or row.place < 0 or row.size < first_size:
            return False
        place = places[position]
        place.front = row.front
        place.shape = row.size - first_size
        place.rows = 1
        place.place = row.place
    return True


@compiled
def end_rows(table: Any, tickets: Any, taken: Any, ended: Any, ends: Any, times: Any, books: Any) -> int:
    """Takes those of a batch that are rows still: they go into `taken` and `ended`, with their positions in the batch
    in `taken.ticket`, and are rows no more. Those of one front end follow each other. Returns how many front ends
    there are; `ends` says where the rows of each end. `times` and `books` are those of `count_end`.
    """
    started_ns, run_ns, now_ns = times[0], times[1], times[2]
    count = fronts = first = 0
    while True:
        while first < len(tickets) and table[tickets[first] & SLOT].ticket != tickets[first]:
            first += 1
        if first == len(tickets):
            return fronts
        front = table[tickets[first] & SLOT].front
        for position in range(first, len(tickets)):
            row = table[tickets[position] & SLOT]
            if row.ticket == tickets[position] and row.front == front:
                taken[count] = row
                taken[count].ticket = position
                row.ticket = -1
                end = ended[count]
                end.number = row.number
                end.queue_ns = started_ns - row.arrival_ns
                end.run_ns = run_ns
                end.outcome = ON_TIME if now_ns <= row.deadline_ns else LATE
                count_end(row.arrival_ns, row.deadline_ns, times, books)
                count += 1
        ends[fronts] = count
        fronts += 1


@compiled
def write_answers(memory: Any, taken: Any, behind: Any, answers: Any) -> bool:
    """The bytes of each answer to where its front end looks for it; false, and no more, where that is outside."""
    width = answers.shape[1]
    for row in taken:
        place = row.place + behind[row.size]
        if place < 0 or place + width > len(memory):
            return False
        memory[place : place + width] = answers[row.ticket]
    return True
