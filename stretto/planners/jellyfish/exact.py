"""The integer program of Jellyfish, equations (1) to (6), solved to proved optimality with HiGHS.

As printed, products of x and b make it hard, and so do workers that can be told apart only by number. Here a worker is
one of many columns (kind, model, batch) of which it takes one, and equal workers are counted: y says how many workers
take a column, x which clients these serve together. That leaves one thing out: the clients of a column that several
workers take must be packed into these, whole clients to a worker. Where they cannot be, the column is taken apart into
one copy for each worker, and the program is solved again. So the bound is always valid, and the end is exact.

Share of clients mapped comes first, as for algorithm 2: clients without a place are worth nothing, and there are as few
of them as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.core.errors import StrettoError
from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, mapping_of

GAP = 1e-7
ROUNDS = 50


@dataclass(frozen=True)
class Column:
    """Workers of `kind` running `model` in batches of `batch`; `copies` many at most, which count as one set."""

    kind: int
    model: int
    batch: int
    capacity: int  # steps of rate
    copies: int


def optimum(problem: Problem, *, time_limit_s: float = 600.0, at_least: Mapping | None = None) -> Mapping:
    """The best mapping there is. `at_least` is a mapping that is known, which spares the search what is worse."""
    counts = np.bincount(problem.kind_of, minlength=problem.latency_ns.shape[0])
    columns = _columns(problem, counts)
    if problem.clients == 0 or not columns:
        nobody = np.full(problem.clients, UNMAPPED, np.int64)
        return mapping_of(problem, np.zeros(problem.workers, np.int64), np.zeros(problem.workers, np.int64), nobody)
    for _ in range(ROUNDS):
        program = _Program(problem, counts, columns, time_limit_s)
        most = problem.clients if at_least is not None and at_least.mapped == problem.clients else program.most_mapped()
        floor = at_least.value if at_least is not None and at_least.mapped == most else None
        served = program.most_accurate(most, floor)
        packed = [_packed(problem, column, *of_column) for column, of_column in zip(columns, served, strict=True)]
        if all(packing is not None for packing in packed):
            return _mapping(problem, columns, [packing for packing in packed if packing is not None])
        columns = [
            part
            for column, packing in zip(columns, packed, strict=True)
            for part in ([column] if packing is not None else _apart(column))
        ]
    raise StrettoError("the exact program did not settle; this is a mistake in it")


def _columns(problem: Problem, counts: NDArray[np.int64]) -> list[Column]:
    """All that may be of use: a batch that brings no more through than a smaller one is left out."""
    columns = []
    for kind, count in enumerate(counts.tolist()):
        for model in range(problem.models):
            largest = int(problem.largest[kind, model].max(initial=0)) if count else 0
            before = 0
            for batch in range(1, largest + 1):
                allowed = problem.largest[kind, model] >= batch
                capacity = _reachable(problem.steps[allowed], int(problem.capacity[kind, model, batch]))
                if capacity > before:
                    columns.append(Column(kind, model, batch, capacity, count))
                    before = capacity
    return columns


def _reachable(steps: NDArray[np.int64], capacity: int) -> int:
    """The greatest sum of some clients' rates that fits."""
    sums = 1
    for step in steps.tolist():
        sums |= sums << step
    return (sums & ((1 << (capacity + 1)) - 1)).bit_length() - 1


def _apart(column: Column) -> list[Column]:
    return [Column(column.kind, column.model, column.batch, column.capacity, 1) for _ in range(column.copies)]


class _Program:
    """Unknowns: y by column, then x by (client, column) where (5) allows it."""

    def __init__(self, problem: Problem, counts: NDArray[np.int64], columns: list[Column], time_limit_s: float) -> None:
        self.problem, self.columns, self.time_limit_s = problem, columns, time_limit_s
        self.pairs = [
            (client, number)
            for number, column in enumerate(columns)
            for client in np.flatnonzero(problem.largest[column.kind, column.model] >= column.batch).tolist()
        ]
        size, width = len(columns), len(self.pairs)
        clients, numbers = (np.array(part, np.int64) for part in zip(*self.pairs, strict=True))
        self.worth = np.array(
            [problem.accuracy[columns[number].model] * problem.rate[client] for client, number in self.pairs]
        )
        x = size + np.arange(width)
        kinds = np.array([column.kind for column in columns])
        # (2): a client has one place at most.
        self.placed = sparse.csr_matrix((np.ones(width), (clients, x)), (problem.clients, size + width))
        # (3): a worker takes one column.
        taken = sparse.csr_matrix((np.ones(size), (kinds, np.arange(size))), (len(counts), size + width))
        # (4): nobody is served by a column that no worker takes.
        rows = np.arange(width)
        used = sparse.csr_matrix(
            (np.r_[np.ones(width), -np.ones(width)], (np.r_[rows, rows], np.r_[x, numbers])), (width, size + width)
        )
        # (6): capacity, in steps.
        capacity = sparse.csr_matrix(
            (
                np.r_[problem.steps[clients].astype(float), [-float(column.capacity) for column in columns]],
                (np.r_[numbers, np.arange(size)], np.r_[x, np.arange(size)]),
            ),
            (size, size + width),
        )
        self.rows = [
            LinearConstraint(self.placed, -np.inf, 1.0),
            LinearConstraint(taken, -np.inf, counts.astype(float)),
            LinearConstraint(used, -np.inf, 0.0),
            LinearConstraint(capacity, -np.inf, 0.0),
        ]
        self.highest = np.r_[[float(column.copies) for column in columns], np.ones(width)]

    def most_mapped(self) -> int:
        """How many clients can have a place."""
        solved = self._solved(np.ones(len(self.pairs)), [], 0.5)
        return round(float(solved[len(self.columns) :].sum()))

    def most_accurate(self, mapped: int, floor: float | None) -> list[tuple[int, list[int]]]:
        """By column, how many workers take it and the clients that they serve, where so many are mapped."""
        size = len(self.columns)
        every = np.r_[np.zeros(size), np.ones(len(self.pairs))]
        more = [LinearConstraint(sparse.csr_matrix(every), float(mapped), np.inf)]
        if mapped == self.problem.clients:
            more = [LinearConstraint(self.placed, 1.0, 1.0)]
        if floor is not None:
            worth = np.r_[np.zeros(size), self.worth]
            more.append(LinearConstraint(sparse.csr_matrix(worth), floor * (1 - 1e-6), np.inf))
        solved = self._solved(self.worth, more, 0.0)
        served: list[list[int]] = [[] for _ in self.columns]
        for (client, number), value in zip(self.pairs, solved[size:].tolist(), strict=True):
            if value > 0.5:
                served[number].append(client)
        return list(zip(np.rint(solved[:size]).astype(int).tolist(), served, strict=True))

    def _solved(
        self, worth: NDArray[np.float64], more: list[LinearConstraint], absolute_gap: float
    ) -> NDArray[np.float64]:
        size = len(self.columns)
        solved = milp(
            np.r_[np.zeros(size), -worth],
            constraints=[*self.rows, *more],
            integrality=np.ones(size + len(self.pairs)),
            bounds=Bounds(0.0, self.highest),
            options={
                "mip_rel_gap": absolute_gap / max(self.problem.clients, 1) or GAP,
                "time_limit": self.time_limit_s,
            },
        )
        if solved.status != 0 or solved.x is None:
            raise StrettoError(f"the exact program was not solved within {self.time_limit_s:g} s; allow more time")
        solution: NDArray[np.float64] = solved.x
        return solution


def _packed(problem: Problem, column: Column, workers: int, clients: list[int]) -> list[list[int]] | None:
    """The clients of a column by worker, whole; None where they do not fit into so many. Exact: searched through."""
    by_size = sorted(clients, key=lambda client: -int(problem.steps[client]))
    bins: list[list[int]] = []
    rooms: list[int] = []

    def place(number: int) -> bool:
        if number == len(by_size):
            return True
        need = int(problem.steps[by_size[number]])
        tried = set()
        for spot, room in enumerate(rooms):
            if need <= room and room not in tried:
                tried.add(room)
                rooms[spot] -= need
                bins[spot].append(by_size[number])
                if place(number + 1):
                    return True
                bins[spot].pop()
                rooms[spot] += need
        if len(rooms) < workers and need <= column.capacity:
            rooms.append(column.capacity - need)
            bins.append([by_size[number]])
            if place(number + 1):
                return True
            rooms.pop()
            bins.pop()
        return False

    return bins if place(0) else None


def _mapping(problem: Problem, columns: list[Column], packed: list[list[list[int]]]) -> Mapping:
    """Columns given to workers by number."""
    models, batches = np.zeros(problem.workers, np.int64), np.zeros(problem.workers, np.int64)
    worker_of = np.full(problem.clients, UNMAPPED, np.int64)
    free = [list(np.flatnonzero(problem.kind_of == kind)) for kind in range(problem.latency_ns.shape[0])]
    for column, bins in zip(columns, packed, strict=True):
        for clients in bins:
            worker = int(free[column.kind].pop(0))
            models[worker], batches[worker] = column.model, column.batch
            worker_of[clients] = worker
    return mapping_of(problem, models, batches, worker_of)
