"""How queries get their answers: from a batch that ended, or from their own evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.core.outcome import Outcome
from stretto.live.executor import Job
from stretto.live.face.columns import Rows
from stretto.live.face.messages import ENDED
from stretto.live.generation import Generation
from stretto.live.meters import Meters
from stretto.live.shelf import Report

EVIDENCE = "evidence"  # stands where the variant's name would


def answer_batch(job: Job, report: Report, answers: Array, now_ns: int, meters: Meters) -> None:
    """Each query of the batch that has not ended gets its row."""
    generation: Generation = job.generation
    if isinstance(job.entries, Rows) and job.entries.are_untouched and not generation.has_sizes(job.variant):
        positions, rows = generation.queries.take(job.entries.tickets)
        if len(rows):
            _answer_rows(job, report, answers[positions], rows, now_ns, meters)
        if len(rows) == job.count:
            return
    variant, count, started_ns = job.variant, job.count, report.started_ns
    name = generation.names[variant]
    run_ns = report.ended_ns - started_ns
    accuracy = None if generation.has_sizes(variant) else generation.accuracy[variant]
    arrivals_ns: list[int] = []
    deadlines_ns: list[int] = []
    for position, query in enumerate(job.entries):
        if query.generation is not generation or position in report.failures:
            continue
        generation.queries.pop(query.ticket, None)
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
        expected = generation.accuracy_for(variant, request) if accuracy is None else accuracy
        if request.answer(query.row, answers[position : position + 1], name, expected):
            request.end(Outcome.ON_TIME if now_ns <= request.deadline_ns else Outcome.LATE, now_ns)
    meters.queries(generation.label(variant)[0], arrivals_ns, deadlines_ns, started_ns, run_ns, now_ns)


def _answer_rows(job: Job, report: Report, answers: Array, rows: NDArray[Any], now_ns: int, meters: Meters) -> None:
    """Queries of front ends that nothing happened to but that they came and ran."""
    generation: Generation = job.generation
    run_ns = report.ended_ns - report.started_ns
    application, name = generation.label(job.variant)
    meters.queries(application, rows["arrival_ns"], rows["deadline_ns"], report.started_ns, run_ns, now_ns)
    ended = np.zeros(len(rows), ENDED)
    ended["number"], ended["queue_ns"] = rows["number"], report.started_ns - rows["arrival_ns"]
    ended["run_ns"], ended["accuracy"], ended["batch"] = run_ns, generation.accuracy[job.variant], job.count
    ended["outcome"] = np.where(rows["deadline_ns"] >= now_ns, Outcome.ON_TIME, Outcome.LATE)
    fronts = rows["front"]
    for number in [int(fronts[0])] if (fronts == fronts[0]).all() else np.unique(fronts).tolist():
        own = slice(None) if (fronts == number).all() else fronts == number
        generation.queries.front(number).answered(application, name, ended[own], rows[own], answers[own])


def answer_by_evidence(generation: Generation, ticket: int, now_ns: int, meters: Meters) -> None:
    """Short-circuit (SneakPeek 5.3.1): the posterior of the query's class is its answer."""
    query = generation.queries.pop(ticket)
    query.generation = None
    request, theta = query.request, query.theta
    assert theta is not None  # a planner saw it, or it could not have chosen so
    number = generation.numbers[request.application]
    gives = generation.served.files[number].output
    waited_ns = now_ns - request.arrival_ns
    meters.queries(request.application, [request.arrival_ns], [request.deadline_ns], now_ns, 0, now_ns)
    meters.short_circuited[request.application] += 1
    if request.outcome is not None:
        return
    request.queue_ns = max(request.queue_ns, waited_ns)
    request.short_circuited[query.row] = theta
    answer = np.array([theta], gives.dtype).reshape(1, *gives.shape)
    accuracy = generation.deployment.applications[number].evidence_accuracy or 0.0
    if request.answer(query.row, answer, EVIDENCE, accuracy):
        request.end(Outcome.ON_TIME if now_ns <= request.deadline_ns else Outcome.LATE, now_ns)
