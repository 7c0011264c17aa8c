"""How queries get their answers: from a batch that ended, or from their own evidence."""

from __future__ import annotations

import numpy as np

from stretto.backends.model import Array
from stretto.core.outcome import Outcome
from stretto.live.executor import Job
from stretto.live.generation import Generation
from stretto.live.meters import Meters
from stretto.live.shelf import Report

EVIDENCE = "evidence"  # stands where the variant's name would


def answer_batch(job: Job, report: Report, answers: Array, now_ns: int, meters: Meters) -> None:
    """Each query of the batch that has not ended gets its row."""
    generation: Generation = job.generation
    name = generation.names[job.variant]
    application = generation.label(job.variant)[0]
    run_ns = report.ended_ns - report.started_ns
    for position, query in enumerate(job.entries):
        if query.generation is not generation or position in report.failures:
            continue
        generation.queries.pop(query.ticket, None)
        query.generation = None
        request = query.request
        queue_ns = report.started_ns - request.arrival_ns
        on_time = now_ns <= request.deadline_ns
        meters.query(application, queue_ns, run_ns, now_ns - request.arrival_ns, request.deadline_ns - now_ns)
        if request.outcome is not None:
            continue
        request.batch = max(request.batch, job.count)
        request.queue_ns = max(request.queue_ns, queue_ns)
        request.run_ns = max(request.run_ns, run_ns)
        accuracy = generation.accuracy_for(job.variant, request)
        if request.answer(query.row, answers[position : position + 1], name, accuracy):
            request.end(Outcome.ON_TIME if on_time else Outcome.LATE, now_ns)


def answer_by_evidence(generation: Generation, ticket: int, now_ns: int, meters: Meters) -> None:
    """Short-circuit (SneakPeek 5.3.1): the posterior of the query's class is its answer."""
    query = generation.queries.pop(ticket)
    query.generation = None
    request, theta = query.request, query.theta
    assert theta is not None  # a planner saw it, or it could not have chosen so
    number = generation.numbers[request.application]
    gives = generation.served.files[number].output
    waited_ns = now_ns - request.arrival_ns
    meters.query(request.application, waited_ns, 0, waited_ns, request.deadline_ns - now_ns)
    meters.short_circuited[request.application] += 1
    if request.outcome is not None:
        return
    request.queue_ns = max(request.queue_ns, waited_ns)
    request.short_circuited[query.row] = theta
    answer = np.array([theta], gives.dtype).reshape(1, *gives.shape)
    accuracy = generation.deployment.applications[number].evidence_accuracy or 0.0
    if request.answer(query.row, answer, EVIDENCE, accuracy):
        request.end(Outcome.ON_TIME if now_ns <= request.deadline_ns else Outcome.LATE, now_ns)
