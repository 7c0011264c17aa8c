"""Queries that a model failed on: another variant tries them while there is time, and who fails much is set aside.

Whose fault it was shows when another variant has tried: if that answers, it was the model's; if that fails too, it was
the query's, which ends as failed. Where no other variant can try, the model itself is tried on queries that are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from stretto.core.outcome import Outcome
from stretto.live.conduct import NEVER, Conduct
from stretto.live.executor import Job
from stretto.live.face.columns import Rows
from stretto.live.face.remote import RemoteQuery
from stretto.live.failure_log import FailureLog
from stretto.live.lookout import AT_RISK, NEW, SET_ASIDE
from stretto.live.losses import Losses
from stretto.live.mishap import FailedBatch, Mishap
from stretto.live.quarantine import FIRST_PAUSE_S, Fault, label_of
from stretto.live.requests import Query, Request
from stretto.live.serving import Serving
from stretto.live.shelf import NO_ANSWER, NO_TENSORS, NOT_LOADED, Report

# Ours, and not of the inside of a model.
OWN_REASONS = frozenset({NO_ANSWER, NOT_LOADED, NO_TENSORS, SET_ASIDE, AT_RISK, NEW})
BLAMELESS = OWN_REASONS - {NO_ANSWER}  # the model did not run
FINAL = frozenset({NO_TENSORS, AT_RISK, NEW})  # another variant would meet the same
NS = 1_000_000_000


class Failing(Serving, Protocol):
    """The engine whose batches fail."""

    losses: Losses
    on_blamed: Callable[[str, Fault, str, bool], None]
    on_doubted: Callable[[str], None]


class Failures:
    """The engine's: all of it on the loop's thread. `tells_failures`: clients hear what a model raised, and not only
    that it failed.
    """

    def __init__(self, engine: Failing, tells_failures: bool = False):
        self._engine, self._tells_failures = engine, tells_failures
        self._log = FailureLog()
        self._conduct: dict[str, Conduct] = {}  # by key, of models that failed lately
        self._answered: set[str] = set()  # keys of models that answered a batch since they were last set aside
        self._until_ns = 0  # the last deadline of those that are tried again

    def failed(self, job: Job, failures: dict[int, str], now_ns: int) -> None:
        """These queries of a batch have no answer. They go on to other variants, or end."""
        model = label_of(job.key)
        for reason, count in Counter(failures.values()).items():
            self._log.add(model, reason, count)
        raised = [reason for reason in failures.values() if reason not in BLAMELESS]
        batch = FailedBatch(job.key, raised[0], len(failures) == job.count) if raised else None
        again: list[Query | RemoteQuery] = []
        for position, reason in failures.items():
            query = job.entries[position]
            if query.generation is not job.generation:
                continue  # it ended, or moved on
            query.request.is_told = True
            problem = reason if self._tells_failures or reason in OWN_REASONS else NO_ANSWER
            was_raised = reason not in BLAMELESS
            if reason in FINAL or (was_raised and _has_failed(query)):
                query.request.problem = query.request.problem or problem
                job.generation.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)
                continue
            before = query.mishap
            avoids = frozenset({job.key}) | (before.avoids if before else set())
            query.mishap = Mishap(avoids, problem, batch if was_raised else before and before.batch)
            self._until_ns = max(self._until_ns, query.request.deadline_ns)
            again.append(query)
        if again:
            self._engine.losses.try_again(again, job.generation, now_ns)
        if batch is not None:
            self._suspect(batch, now_ns)

    def told(self, request: Request | RemoteQuery) -> None:
        """It ends as failed. Its reason is in the log too, where that of a model is not already."""
        if not request.is_told:
            request.is_told = True
            self._log.add(request.application, request.problem, request.rows)

    def ended(self, job: Job, report: Report, now_ns: int) -> None:
        """A batch ended, and what of it has answers is answered."""
        if report.answers is None:
            return
        self._answered.add(job.key)
        conduct = self._conduct.get(job.key)
        if conduct is not None and not report.failures:
            conduct.passed()
            if conduct.is_clean:
                del self._conduct[job.key]
        if now_ns <= self._until_ns and not (isinstance(job.entries, Rows) and job.entries.are_untouched):
            for position, query in enumerate(job.entries):
                mishap: Mishap | None = query.mishap
                if mishap is not None and mishap.batch is not None and position not in report.failures:
                    self._prove(mishap.batch)

    def _suspect(self, batch: FailedBatch, now_ns: int) -> None:
        """It may have been the queries' fault. A trial tells, unless the model has never answered anything."""
        conduct = self._conduct_of(batch.key)
        conduct.unanswered += batch.is_whole and batch.key not in self._answered
        why = conduct.suspected.failed(batch.is_whole)
        if conduct.unanswered >= NEVER:
            self._blame(batch, f"it failed on {NEVER} batches and answered none")
        elif why and now_ns >= conduct.no_trial_before_ns:
            conduct.no_trial_before_ns = now_ns + round(FIRST_PAUSE_S * NS)
            left_ns = self._until_ns - now_ns  # until then others may show whose fault it was
            self._engine.loop.call_later(max(0, left_ns) / NS, self._doubt, batch.key)

    def _doubt(self, key: str) -> None:
        """Unless it was set aside meanwhile."""
        if key in self._conduct:
            self._engine.on_doubted(key)

    def _prove(self, batch: FailedBatch) -> None:
        """Another variant answered one of its queries."""
        if batch.is_proven:
            return
        batch.is_proven = True
        why = self._conduct_of(batch.key).proven.failed(batch.is_whole)
        if why:
            self._blame(batch, f"{why}, and other variants could answer their queries")

    def _blame(self, batch: FailedBatch, why: str) -> None:
        del self._conduct[batch.key]
        self._answered.discard(batch.key)
        self._engine.on_blamed(batch.key, Fault.RAISED, f"{why}; last: {batch.reason}", True)

    def _conduct_of(self, key: str) -> Conduct:
        if key not in self._conduct:
            served = self._engine.generation.served.keys
            self._conduct = {each: conduct for each, conduct in self._conduct.items() if each in served}
            self._answered &= served
            self._conduct[key] = Conduct()
        return self._conduct[key]


def _has_failed(query: Query | RemoteQuery) -> bool:
    """A model failed on it before, and this is another one: it is the query that no model can answer."""
    return query.mishap is not None and query.mishap.batch is not None
