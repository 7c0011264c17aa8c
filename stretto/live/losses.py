"""What becomes of queries whose worker is lost or hangs, or whose batch failed: tried again while there is time, else
ended as failed.

A client hears so at its deadline at the latest. It does not wait until a hanging worker is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stretto.core.outcome import Outcome
from stretto.live.executor import Job
from stretto.live.face.remote import RemoteQuery
from stretto.live.generation import Generation
from stretto.live.requests import Query
from stretto.live.serving import Serving

MAX_TRIES = 2  # workers that a query may lose before it is taken to be the reason
NO_WORKER_LEFT = "the worker that ran it was lost, and it could not be tried again in time"
NO_WORKER_ANSWERS = "the worker that ran it does not answer"
POISON = "every worker that ran it was lost"

Move = Callable[[Iterable[Query | RemoteQuery], Generation, int], None]


class Losses:
    """The engine's: all of it on the loop's thread."""

    def __init__(self, engine: Serving, move: Move):
        """`move` takes queries over into the generation that serves now."""
        self._engine, self._move = engine, move

    def left(self, worker: int, jobs: Sequence[Job]) -> None:
        """A worker is lost, with these batches."""
        engine, now_ns = self._engine, self._engine.clock()
        generations = {id(engine.generation): engine.generation}
        for place, job in enumerate(jobs):
            generation: Generation = job.generation
            generations[id(generation)] = generation
            for query in job.entries:  # a poison query ends here, before another worker is given it
                query.tries += place == 0  # what was only next in line had no part in it
                if query.tries >= MAX_TRIES and query.generation is not None:
                    query.request.problem = POISON
                    generation.dispatcher.cancel(now_ns, query.ticket, Outcome.FAILED)
                elif query.generation is not None:
                    self._end_at_deadline(query, NO_WORKER_LEFT)
            engine.act(generation)
            if generation is not engine.generation:  # its workers are elsewhere by now; nothing starts there any more
                self._move([query for query in job.entries if query.generation is generation], generation, now_ns)
        for generation in generations.values():
            generation.dispatcher.worker_left(now_ns, worker)
            engine.act(generation)

    def watch(self) -> None:
        """Called now and then: who waits for a batch that will hang need not wait until that is certain."""
        for job in (job for member in self._engine.crew.lookout.overdue() for job in member.jobs):
            for query in job.entries:
                if query.generation is not None and not query.is_ending:
                    self._end_at_deadline(query, NO_WORKER_ANSWERS)

    def try_again(self, queries: Sequence[Query | RemoteQuery], generation: Generation, now_ns: int) -> None:
        """Their batch failed on them: they enter anew, to be answered by other variants."""
        for query in queries:
            assert query.mishap is not None
            self._end_at_deadline(query, query.mishap.problem)
        self._move(queries, generation, now_ns)

    def _end_at_deadline(self, query: Query | RemoteQuery, problem: str) -> None:
        query.is_ending = True
        left_ns = query.request.deadline_ns - self._engine.clock()
        self._engine.loop.call_later(max(0, left_ns) / 1e9, self._fail, query, problem)

    def _fail(self, query: Query | RemoteQuery, problem: str) -> None:
        generation = query.generation
        if generation is not None:
            query.request.problem = query.request.problem or problem
            generation.dispatcher.cancel(self._engine.clock(), query.ticket, Outcome.FAILED)
            self._engine.act(generation)
