"""Candidates: what might be served. Any planner with any options, and every fixed variant.

Each planner says in the registry whether it is worth trying, and which values of its options are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from stretto.core.deployment import Deployment
from stretto.core.verdict import Candidate, OptionValue
from stretto.core.view import Planner
from stretto.planners.data_aware import tells_classes_apart
from stretto.planners.entry import DATA_AWARE, Entry
from stretto.planners.ports import Ports
from stretto.planners.registry import ENTRIES, planner_entry

# Kinds of query have lanes of their own, as several applications do.
TRIED_BY_CLASS = ("always", "if unequal")
MOST_VARIANTS = 12  # of an application that are tried alone
MOST_POOLED = 3  # of them where clients are known, and a trial is dear


def make(candidate: Candidate, ports: Ports | None = None) -> Planner:
    """A planner of its own, with nothing remembered."""
    return planner_entry(candidate.planner).make(dict(candidate.options), dict(candidate.variants), ports)


def rough(candidate: Candidate) -> Candidate:
    """The same with what makes its plans quicker."""
    for option in planner_entry(candidate.planner).options:
        if option.rough is not None:
            candidate = candidate.with_option(option.name, option.rough)
    return candidate


def for_a_moving_load(candidate: Candidate) -> tuple[Candidate, ...]:
    """The same without what pays only where a load stays, and that with what is worth trying where it moves."""
    options = planner_entry(candidate.planner).options
    left_out = {option.name for option in options if option.if_steady}
    plain = replace(candidate, options=tuple(each for each in candidate.options if each[0] not in left_out))
    return (plain, *(plain.with_option(option.name, value) for option in options for value in option.if_moving))


def start_for(deployment: Deployment, *, has_load: bool = True) -> Candidate:
    """Chooses what serves a load until it is judged. `priced` needs no load, starts batches at once, and lets all
    applications, or kinds of query, use every worker. For one application with a choice `shared_queue` knows better: it
    has tables made for the load. It knows nothing of loading variants.
    """
    if hears_of_classes(deployment):
        return Candidate("priced", ((DATA_AWARE.name, True),))
    is_alone = len(deployment.applications) == 1 and not memory_is_short(deployment)
    if has_load and has_choice(deployment) and is_alone:
        return Candidate("shared_queue", (("caution", 1.0),))
    return Candidate("priced")


def candidates_for(deployment: Deployment, *, dear: bool = False, by_client: bool = False) -> tuple[Candidate, ...]:
    """All that is worth trying for a deployment; `dear`: those whose plans take long to make, and only those.
    `by_client`: clients and their networks are known, so that planners that look at them are worth trying too.

    Some are for unequal workers or several applications, some for workers that cannot hold all variants, and some for
    applications of a single variant.
    """
    may_choose = has_choice(deployment)
    is_unequal = len(deployment.kinds) > 1 or len(deployment.applications) > 1
    tried = {"where it may gain"} if dear else {"always"}
    if not dear:
        tried |= ({"if unequal"} if is_unequal else set()) | (set() if may_choose else {"with one variant each"})
        tried |= {"with one kind of worker" if len(deployment.kinds) == 1 else "with several kinds of worker"}
        tried |= {"where clients are known"} if by_client else set()
        tried |= {"where memory is short"} if memory_is_short(deployment) else set()
        tried |= {"where variants are swapped"} if has_swaps(deployment) else set()
    # Where there is nothing to choose, what serves before the first verdict is one of those that are tried.
    candidates = [] if may_choose or dear else [Candidate("priced")]
    for entry in ENTRIES:
        if entry.tried in tried and (may_choose or not entry.chooses_variants):
            alone = list(_alone(deployment)) if may_choose and not entry.chooses_variants else [()]
            candidates += [
                Candidate(entry.name, options, variants) for options in _options(entry) for variants in alone
            ]
    if not dear and hears_of_classes(deployment):
        candidates += [
            Candidate(entry.name, (*options, (DATA_AWARE.name, True)))
            for entry in ENTRIES
            if entry.tried in TRIED_BY_CLASS and entry.chooses_variants and DATA_AWARE in entry.options
            for options in _options(entry)
        ]
    return tuple(candidates)


def by_class(candidate: Candidate) -> tuple[Candidate, ...]:
    """The same with accuracies by what evidence says of a query's class, or without them if it has them."""
    entry = planner_entry(candidate.planner)
    if DATA_AWARE not in entry.options or not entry.chooses_variants or entry.by_windows:
        return ()
    others = tuple(each for each in candidate.options if each[0] != DATA_AWARE.name)
    return (replace(candidate, options=others if others != candidate.options else (*others, (DATA_AWARE.name, True))),)


def hears_of_classes(deployment: Deployment) -> bool:
    """Whether evidence was measured of some application, and tells its variants apart."""
    return any(each.class_shares and tells_classes_apart(each) for each in deployment.applications)


def candidates_digest(deployment: Deployment) -> str:
    """Of all that are worth trying for it."""
    offered = candidates_for(deployment, by_client=True), candidates_for(deployment, dear=True)
    return hashlib.sha256(repr(offered).encode()).hexdigest()[:8]


def candidates_without_tables(deployment: Deployment) -> tuple[Candidate, ...]:
    """Those whose plans are made at once: they serve from the first query on, and follow a load as it moves."""
    return tuple(each for each in candidates_for(deployment) if "policies" not in planner_entry(each.planner).ports)


def candidates_with_clients(deployment: Deployment, rate: float) -> tuple[Candidate, ...]:
    """What is worth trying where clients' networks are known: planners that look at clients, and one queue for all
    workers with the most accurate variants that could answer so many queries a second.
    """
    looking = [
        Candidate(entry.name, options)
        for entry in ENTRIES
        if entry.tried == "where clients are known"
        for options in _options(entry)
    ]
    pooled = [
        Candidate("clockwork_filling", (), variants)
        for variants in _alone(deployment, 4096)
        if _throughput(deployment, dict(variants)) >= rate
    ]
    return (*looking, *pooled[-MOST_POOLED:])


def _throughput(deployment: Deployment, variants: dict[str, str]) -> float:
    """Queries/s of all workers, if each ran the slowest of these variants in batches that leave half of the SLO."""
    total = 0.0
    for worker in deployment.workers:
        paces = []
        for application in deployment.applications:
            variant = next(each for each in application.variants if each.name == variants[application.name])
            profile = variant.profile_on(worker.kind)
            batch = 0 if profile is None else profile.largest_batch_within(application.slo_ns / 2, deployment.quantile)
            paces.append(0.0 if profile is None or not batch else batch * 1e9 / profile.latency_ns(batch))
        total += min(paces)
    return total


def has_choice(deployment: Deployment) -> bool:
    """Whether some application has more than one variant."""
    return any(len(application.variants) > 1 for application in deployment.applications)


def memory_is_short(deployment: Deployment) -> bool:
    """Whether some worker cannot hold all that it can run, and what the largest needs to run."""
    for worker in {(each.kind, each.memory_bytes): each for each in deployment.workers}.values():
        runs = [variant for variant in deployment.variants if variant.profile_on(worker.kind)]
        most = max((variant.dynamic_memory_bytes for variant in runs), default=0)
        if sum(variant.memory_bytes for variant in runs) + most > worker.memory_bytes:
            return True
    return False


def has_swaps(deployment: Deployment) -> bool:
    """Whether some worker cannot hold all that it can run, and queries of every application may wait for a variant."""
    return memory_is_short(deployment) and all(
        any(variant.load_ns + profile.latency_ns(1) <= application.slo_ns for profile in variant.profiles)
        for application in deployment.applications
        for variant in (min(application.variants, key=lambda each: each.load_ns),)
    )


def _options(entry: Entry) -> Iterator[tuple[tuple[str, OptionValue], ...]]:
    tried = [option for option in entry.options if option.tries]
    for values in product(*(option.tries for option in tried)):
        yield tuple((option.name, value) for option, value in zip(tried, values, strict=True))


def _alone(deployment: Deployment, most: int | None = None) -> Iterator[tuple[tuple[str, str], ...]]:
    """One variant for each application, of like rank: from the least accurate of all to the most accurate."""
    ladders = [
        sorted(application.variants, key=lambda variant: variant.accuracy)[-(most or MOST_VARIANTS) :]
        for application in deployment.applications
    ]
    longest = max(map(len, ladders))
    for rank in range(longest):
        yield tuple(
            (application.name, ladder[rank * len(ladder) // longest].name)
            for application, ladder in zip(deployment.applications, ladders, strict=True)
        )


def neighbours(candidate: Candidate) -> tuple[Candidate, ...]:
    """The same planner with one of its options halfway to the next value that is tried, or as far beyond the last; or
    with another value of an option that is worth trying with the best alone.
    """
    options = planner_entry(candidate.planner).options
    tried = {option.name: option for option in options if option.tries}
    near = [candidate.with_option(option.name, value) for option in options for value in option.later]
    for name, value in candidate.options:
        if name not in tried:
            continue
        option = tried[name]
        below = [other for other in option.tries if other < value]
        above = [other for other in option.tries if other > value]
        steps = [(max(below) - value) / 2] if below else [(value - min(above)) / 2] if above else []
        steps += [(min(above) - value) / 2] if above else [(value - max(below)) / 2] if below else []
        values = [value + step for step in steps]
        near += [candidate.with_option(name, other) for other in values if option.low <= other <= option.high]
    return tuple(other for other in near if other != candidate)


def with_more(candidate: Candidate, name: str, further: int) -> tuple[Candidate, ...]:
    """The same planner with more of an option, the least of it first: the values above its own that are tried, and so
    many steps further on.
    """
    own_options = dict(candidate.options)
    for option in planner_entry(candidate.planner).options:
        if option.name == name and name in own_options and len(option.tries) > 1:
            *_, before, last = sorted(option.tries)
            values = [*sorted(option.tries), *(last + (last - before) * step for step in range(1, further + 1))]
            return tuple(
                candidate.with_option(name, value) for value in values if own_options[name] < value <= option.high
            )
    return ()
