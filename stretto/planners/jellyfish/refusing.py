"""Clients that nobody serves: the lane that refuses them at the door, and who is routed to it."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.plan import Fixed, Lane, Late, Missing, Order
from stretto.planners.jellyfish.demand import Demand


def refusing_lane(application: str, worker: int, variant: int) -> Lane:
    """Takes nobody in; its clients are told the size of the variant."""
    return Lane(
        name=f"{application}@nobody",
        workers=(worker,),
        select=Fixed(variant),
        order=Order.FIRST_COME,
        late=Late.DROP_WHEN_INFEASIBLE,  # for those that waited when their client lost its place
        capacity=0,
        missing=Missing.WAIT,
    )


def targets_by_slot(demand: Demand, positions: Sequence[int], refused: int) -> tuple[int, ...]:
    """`positions`: in the route, of each client that was planned for; those that are hopeless go to `refused`, and
    slots that nobody had go to the first.
    """
    by_slot = {client.slot: position for client, position in zip(demand.clients, positions, strict=True)}
    by_slot |= {client.slot: refused for client in demand.hopeless}
    return tuple(by_slot.get(slot, 0) for slot in range(1 + max(by_slot, default=0)))
