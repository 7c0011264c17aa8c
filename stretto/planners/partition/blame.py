"""Why there is no partition: the model, or the limit, that is to blame."""

from __future__ import annotations

import math

import numpy as np

from stretto.planners.partition.problem import NOWHERE, ROUNDING, Assignment, Change, PartitionProblem, loads_of

LOAD_OR_UNLOAD = 1.0  # what either costs where nobody says; a move is both


def blame(problem: PartitionProblem, change: Change | None, assignment: Assignment, least_change: float | None) -> str:
    """`assignment` breaks a limit; `least_change` is what a change costs that would not, where one was found."""
    return (
        fault_of(problem)
        or (_change(change, least_change) if change is not None and least_change is not None else "")
        or _packing(problem, assignment)
    )


def fault_of(problem: PartitionProblem) -> str:
    """Why no partition could ever be: a model alone, or all together. Else nothing."""
    return _one_model(problem) or _all_models(problem)


def _one_model(problem: PartitionProblem) -> str:
    need = problem.static_bytes + problem.dynamic_bytes
    hungriest, busiest = int(np.argmax(need)), int(np.argmax(problem.rates))
    if need[hungriest] > problem.max_bytes * (1 + ROUNDING):
        return (
            f"model {problem.name(hungriest)} alone needs {as_bytes(need[hungriest])}, a worker has"
            f" {as_bytes(problem.max_bytes)}; take a smaller variant, or workers with more memory"
        )
    if problem.rates[busiest] > problem.max_rate * (1 + ROUNDING):
        return (
            f"model {problem.name(busiest)} alone gets {as_rate(problem.rates[busiest])}, a {problem.part} takes"
            f" {as_rate(problem.max_rate)}; serve it under several names, or raise the limit"
        )
    return ""


def _all_models(problem: PartitionProblem) -> str:
    count = problem.subclusters
    total, room = float(problem.rates.sum()), count * problem.max_rate
    if total > room * (1 + ROUNDING):
        parts = f"{count} {problem.part}s take" if count > 1 else f"1 {problem.part} takes"
        return (
            f"rates sum to {as_rate(total)}, {parts} {as_rate(room)};"
            f" take {math.ceil(total / problem.max_rate)} {problem.part}s or more"
        )
    total, room = float(problem.static_bytes.sum()), count * (problem.max_bytes - float(problem.dynamic_bytes.min()))
    if total > room * (1 + ROUNDING):
        return (
            f"the models take {as_bytes(total)}, and the workers of {count} {problem.part}s hold {as_bytes(room)}"
            f" beside the memory that a model needs to run; take more {problem.part}s, or workers with more memory"
        )
    return ""


def _change(change: Change, least_change: float) -> str:
    new = change.current.count(NOWHERE) * LOAD_OR_UNLOAD
    if change.costs is None and change.max_cost >= new:
        allowed, needed = ((cost - new) / (2 * LOAD_OR_UNLOAD) for cost in (change.max_cost, least_change))
        return (
            f"the limit on change allows {math.floor(allowed)} moves, {round(needed)} are needed (the fewest found);"
            " allow more"
        )
    return f"the limit on change allows a cost of {change.max_cost:g}, {least_change:g} is needed (the least found)"


def _packing(problem: PartitionProblem, assignment: Assignment) -> str:
    """The sums would fit, but no way was found to put the models together."""
    rates, sizes, largest = loads_of(problem, assignment)
    memory = sizes + largest
    if (memory > problem.max_bytes * (1 + ROUNDING)).any():
        worst, what = int(np.argmax(memory)), "memory"
        figures = f"needs {as_bytes(memory[worst])} of {as_bytes(problem.max_bytes)}"
        model = int(np.argmax(np.where(assignment == worst, problem.static_bytes + problem.dynamic_bytes, -1)))
    else:
        worst, what = int(np.argmax(rates)), "rate"
        figures = f"gets {as_rate(rates[worst])} of {as_rate(problem.max_rate)}"
        model = int(np.argmax(np.where(assignment == worst, problem.rates, -1)))
    return (
        f"no partition was found that keeps the limit on {what}: at best the {problem.part} of model"
        f" {problem.name(model)} {figures}; take more {problem.part}s, or raise the limit"
    )


def as_bytes(count: float) -> str:
    """For people, as 9.1 GB."""
    if math.isinf(count):
        return "any number of bytes"
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.3g} bytes"


def as_rate(rate: float) -> str:
    """For people, as 2.1 M queries/s."""
    if math.isinf(rate):
        return "any rate"
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if rate >= unit:
            return f"{rate / unit:.3g}{name} queries/s"
    return f"{rate:.3g} queries/s"
