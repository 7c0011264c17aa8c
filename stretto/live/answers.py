"""How queries get their answers: from a batch that ended, or from their own evidence."""

from __future__ import annotations

import numpy as np

from stretto.backends.model import Array
from stretto.core.outcome import Outcome
from stretto.live.executor import Job
from stretto.live.face.columns import Rows
from stretto.live.generation import Generation
from stretto.live.meters import Meters
from stretto.live.shelf import Report

ON_TIME, LATE = Outcome.ON_TIME, Outcome.LATE  # asked for with every query
EVIDENCE = "evidence"  # stands where the variant's name would


def answer_batch(job: Job, report: Report, answers: Array, now_ns: int, meters: Meters) -> None:
    """Each query of the batch that has not ended gets its row."""
    generation: Generation = job.generation
    if isinstance(job.entries, Rows) and _answer_rows(job, job.entries, report, answers, now_ns, meters) == job.count:
        return
    variant, count, started_ns, queries = job.variant, job.count, report.started_ns, generation.queries
    name = generation.names[variant]
    run_ns = report.ended_ns - started_ns
    accuracy = None if generation.has_sizes(variant) else generation.accuracy[variant]
    arrivals_ns: list[int] = []
    deadlines_ns: list[int] = []
    for position, query in enumerate(job.entries):
        if query.generation is not generation or position in report.failures:
            continue
        dict.pop(queries, query.ticket, None)  # it is no row of numbers any more
        query.generation = None
        request = query.request
        arrivals_ns.append(request.arrival_ns)
        deadlines_ns.append(request.deadline_ns)
        if request.outcome is not None:
            continue
        queue_ns = started_ns - request.arrival_ns
        if request.rows > 1:
            request.batch = max(request.batch, count)
            request.queue_ns = max(request.queue_ns, queue_ns)
            request.run_ns = max(request.run_ns, run_ns)
        else:
            request.batch, request.queue_ns, request.run_ns = count, queue_ns, run_ns
        is_known = accuracy is not None and query.theta is None
        expected = accuracy if is_known else generation.expected_for(variant, query)
        if request.answer(query.row, answers[position : position + 1], name, expected):
            request.end(ON_TIME if now_ns <= request.deadline_ns else LATE, now_ns)
    meters.queries(
        generation.label(variant)[0],
        arrivals_ns,
        deadlines_ns,
        started_ns,
        run_ns,
        now_ns,
        generation.accuracy[variant],
        generation.penalty(variant),
    )


def _answer_rows(job: Job, rows: Rows, report: Report, answers: Array, now_ns: int, meters: Meters) -> int:
    """Queries of front ends that nothing happened to but that they came and ran; how many of the batch are such."""
    generation: Generation = job.generation
    if not rows.are_untouched or generation.has_sizes(job.variant):
        return 0
    application, name = generation.label(job.variant)
    run_ns = report.ended_ns - report.started_ns
    many, accuracy = meters.many(application, generation.penalty(job.variant)), generation.accuracy[job.variant]
    taken, ended, ends = rows.end(report.started_ns, run_ns, now_ns, many, accuracy)
    if ends:
        fronts = [generation.queries.front(number) for number in taken["front"][[end - 1 for end in ends]].tolist()]
        ended["accuracy"], ended["batch"] = accuracy, job.count
        ended["variant"] = fronts[0].variant_number((application, name))
        octets = np.ascontiguousarray(answers).reshape(len(answers), -1).view(np.uint8)
        for front, first, end in zip(fronts, (0, *ends), ends, strict=False):
            front.answered(ended[first:end], taken[first:end], octets)
    return len(taken)


def answer_by_evidence(generation: Generation, ticket: int, now_ns: int, meters: Meters) -> None:
    """Short-circuit (SneakPeek 5.3.1): the posterior of the query's class is its answer."""
    query = generation.queries.pop(ticket)
    query.generation = None
    request, theta = query.request, query.theta
    assert theta is not None  # a planner saw it, or it could not have chosen so
    number = generation.numbers[request.application]
    gives = generation.served.files[number].output
    waited_ns = now_ns - request.arrival_ns
    called = generation.deployment.applications[number]
    accuracy = called.evidence_accuracy or 0.0
    times = [request.arrival_ns], [request.deadline_ns], now_ns, 0, now_ns
    meters.queries(request.application, *times, accuracy, called.penalty)
    meters.short_circuited[request.application] += 1
    if request.outcome is not None:
        return
    request.queue_ns = max(request.queue_ns, waited_ns)
    request.short_circuited = {**request.short_circuited, query.row: theta}
    answer = np.array([theta], gives.dtype).reshape(1, *gives.shape)
    if request.answer(query.row, answer, EVIDENCE, accuracy):
        request.end(ON_TIME if now_ns <= request.deadline_ns else LATE, now_ns)
