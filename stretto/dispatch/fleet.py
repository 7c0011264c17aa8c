"""A fleet that grows: further workers behind those that are there, perhaps of a kind that was not in use before.

Workers and kinds keep their numbers, because new ones come last. So everything that names a worker or a kind stays
true, and only arrays that are by worker or by kind are laid out anew, with what they held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.application import Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.dispatch.layout import Memory, lay_out_decisions, lay_out_deployment, lay_out_tables
from stretto.dispatch.records import IN_FLIGHT

MEASURED = ("ratio", "written", "runs", "planned")  # what a latency row learned, and began with


def check_larger(before: Deployment, after: Deployment) -> None:
    """Raises StrettoError unless `after` is `before` with further workers at the end."""
    if before.quantile != after.quantile:
        raise StrettoError("a larger fleet must decide by the same quantile of latency")
    names = [[each.name for each in deployment.applications] for deployment in (before, after)]
    if names[0] != names[1]:
        raise StrettoError("a larger fleet must serve the same applications in the same order")
    for old, new in zip(before.applications, after.applications, strict=True):
        if [variant.name for variant in old.variants] != [variant.name for variant in new.variants]:
            raise StrettoError(f"a larger fleet must have the same variants of application {old.name}")
    for number, (variant, later) in enumerate(zip(before.variants, after.variants, strict=True)):
        if not _is_same(variant, later, before.kinds):
            raise StrettoError(f"variant {before.variant_label(number)} has other properties on the larger fleet")
    if after.workers[: len(before.workers)] != before.workers:
        raise StrettoError("a larger fleet must list the workers that are there first, unchanged and in their order")


def _is_same(variant: Variant, later: Variant, kinds: tuple[str, ...]) -> bool:
    """In everything that the dispatcher goes by, on the kinds that were in use."""
    needs = [(v.accuracy, v.memory_bytes, v.dynamic_memory_bytes, v.load_ns) for v in (variant, later)]
    if needs[0] != needs[1]:
        return False
    for kind in kinds:
        profile, other = variant.profile_on(kind), later.profile_on(kind)
        if profile is None or other is None:
            if profile is not other:
                return False
        elif not np.array_equal(profile.table_ns, other.table_ns):
            return False
    return True


def enlarge(memory: Memory, before: Deployment, after: Deployment, plan: Plan) -> None:
    """Room for the workers of `after`; the new ones are not there yet. The decision buffer must be empty."""
    larger = Memory()
    lay_out_deployment(larger, after, float(memory.state["correction"][0]))
    variants, kinds, workers = len(before.variants), len(before.kinds), len(before.workers)
    rows, old_rows = larger["rows"].reshape(variants, -1), memory["rows"].reshape(variants, kinds)
    for name in MEASURED:
        rows[name][:, :kinds] = old_rows[name]
    old_latency = memory["latency"].reshape(variants, kinds, -1)
    latency = larger["latency"].reshape(variants, len(after.kinds), -1)
    latency[:, :kinds, : old_latency.shape[2]] = old_latency
    crew = larger["workers"]
    crew["alive"] = 0
    larger["idle"][:] = 0
    for name, size in (
        ("workers", workers),
        ("batches", workers * IN_FLIGHT),
        ("resident", workers * variants),
        ("idle", len(memory["idle"])),
    ):
        larger[name][:size] = memory[name][:size]
    words = int(larger.state["member_words"][0])
    members = np.zeros((len(plan.lanes), words), dtype=np.uint64)
    members[:, : len(memory["idle"])] = memory["members"].reshape(len(plan.lanes), -1)
    for name in ("rows", "latency", "profiled", "workers", "batches", "resident", "idle"):
        memory.put(name, larger[name])
    memory.put("members", members.ravel())
    for name in ("kinds", "latency_stride", "member_words"):
        memory.state[name] = larger.state[name]
    lay_out_tables(memory, after, plan)
    lay_out_decisions(memory)


def with_further_workers(plan: Plan, workers: int) -> dict[str, Any]:
    """What changes in the plan in force: it asks nothing of the memory of workers that it did not know, and its
    latencies are not those of kinds that may be new.
    """
    by_worker = {"placement": plan.placement, "prefetch": plan.prefetch}
    longer = {name: held + ((),) * (workers - len(held)) for name, held in by_worker.items() if held is not None}
    return {"ratios": None, **longer}
