"""The server at one instant, as a Snapshot: what its dispatcher shows, and what was counted over all generations."""

from __future__ import annotations

from dataclasses import replace

from stretto.core.snapshot import ApplicationState, Distribution, Snapshot, VariantState, snapshot_of
from stretto.live.meters import STAGES, Histogram, Meters, VariantMeter
from stretto.live.quarantine import Quarantine, label_of
from stretto.live.service import Service

MAX_CLIENTS = 1000  # shown


def snapshot(service: Service) -> Snapshot:
    """On the loop. Reading changes nothing, whoever reads and how often."""
    engine = service.engine
    generation, witness = engine.generation, engine.witness
    telemetry = generation.dispatcher.telemetry(engine.clock())
    plan, delays = generation.dispatcher.plan, generation.in_force.conditions.delays
    bare = snapshot_of(generation.deployment, telemetry, plan, delays)
    busy_ns = engine.books.busy_ns(engine.generations())
    others = [each.dispatcher.telemetry(telemetry.now_ns) for each in engine.generations() if each is not generation]
    return replace(
        bare,
        waiting=bare.waiting + sum(other.waiting for other in others),
        running=bare.running + sum(other.running for other in others),
        applications=_applications(service, bare.applications),
        variants=_variants(engine.meters, bare.variants, service.offer.quarantine),
        slots=tuple(replace(slot, busy_ns=busy_ns[slot.name]) for slot in bare.slots),
        clients=service.clients.latest(telemetry.now_ns, MAX_CLIENTS),
        client_count=len(service.clients),
        restarts=engine.crew.restarts,
        replaced=engine.crew.replaced,
        on_probation=len(service.admission.trials),
        switch_hits=bare.switch_hits + sum(other.switch_hits for other in others) + engine.books.switch_hits,
        switch_misses=bare.switch_misses + sum(other.switch_misses for other in others) + engine.books.switch_misses,
        planning=_frozen(engine.meters.planning),
        plans_failed=engine.meters.plans_failed,
        loop_lag=_frozen(engine.lag.seen),
        loop_lag_ns=engine.lag.told_ns,
        policies_made=service.maker.made,
        policies_waiting=service.maker.waiting,
        evidence_computed=None if witness is None else witness.seen,
        evidence_left_out=0 if witness is None else witness.skipped,
        recording=engine.journal.state,
        scaling=None if service.scaler is None else service.scaler.state,
        partition=None if service.moves is None else service.moves.share.partition.version,
        leaving=0 if service.moves is None else len(service.moves.leaving),
    )


def _applications(service: Service, served: tuple[ApplicationState, ...]) -> tuple[ApplicationState, ...]:
    """With the counts of earlier generations, and applications that are served no more."""
    engine = service.engine
    meters, states = engine.meters, {state.name: state for state in served}
    applications = []
    for name, (submitted, outcomes) in engine.books.totals(engine.generations()).items():
        state = states.get(name) or ApplicationState(name, 0, 0.0, 0, ())
        stages = meters.stages.get(name)
        sizes = meters.batch_sizes.get(name)
        applications.append(
            replace(
                state,
                submitted=submitted,
                outcomes=tuple(outcomes.tolist()),
                stages={} if stages is None else dict(zip(STAGES, map(_frozen, stages), strict=True)),
                batch_sizes=None if sizes is None else _frozen(sizes),
                short_circuited=meters.short_circuited.get(name, 0),
                utility=meters.worth(name),
            )
        )
    return tuple(applications)


def _variants(meters: Meters, served: tuple[VariantState, ...], quarantine: Quarantine) -> tuple[VariantState, ...]:
    """Those served now, those that ran before, and those that are set aside."""
    states = {(state.application, state.name): state for state in served}
    set_aside = {label_of(key): entry.fault.value for key, entry in quarantine.entries.items()}
    bad = {tuple(label.split("/", 1)) for label in (*set_aside, *quarantine.losses, *quarantine.times)}
    variants = []
    for application, name in sorted({*states, *meters.variants, *bad}):
        state = states.get((application, name)) or VariantState(application, name)
        label = f"{application}/{name}"
        variants.append(
            replace(
                _counted(state, meters.variants.get((application, name)) or VariantMeter()),
                losses=quarantine.losses[label],
                set_aside=set_aside.get(label, ""),
                times_set_aside=quarantine.times[label],
            )
        )
    return tuple(variants)


def _counted(state: VariantState, meter: VariantMeter) -> VariantState:
    return replace(
        state,
        queries=meter.queries,
        batches=meter.batches,
        failed=meter.failed,
        run_ns=meter.run_ns,
        failed_ns=meter.failed_ns,
        busy_ns=meter.busy_ns,
        last_ended_ms=meter.last_ended_ms,
        sizes=tuple((size, count, meter.run_by_size[size]) for size, count in sorted(meter.by_size.items())),
    )


def _frozen(histogram: Histogram) -> Distribution:
    return Distribution(histogram.edges, tuple(histogram.counts), histogram.sum)
