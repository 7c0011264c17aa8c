"""A setting measured in a simulated world: a stretch is served by some plan, and only what a server sees is kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.evidence import SURE
from stretto.core.plan import Delays
from stretto.core.verdict import Candidate
from stretto.planners.candidates import make, start_for
from stretto.planning.session import Session
from stretto.sim.arrivals import Source
from stretto.sim.service import Service
from stretto.sim.simulator import simulate
from stretto.twin.classes import Labelled
from stretto.twin.recent import Recent, profiled_latencies_ns
from stretto.twin.setting import Setting


def measured_setting(
    deployment: Deployment,
    source: Source,
    service: Service | None,
    *,
    seconds: float,
    seed: int,
    start: Candidate | None = None,
    theta: NDArray[np.float64] | None = None,
    evidence: Mapping[str, Labelled] | None = None,
) -> Setting:
    """Arrivals and run times of a stretch that the start candidate serves. `theta` is what evidence says of each query,
    and `evidence` what it says of labelled samples.
    """
    run = simulate(
        deployment,
        Session(make(start or start_for(deployment))),
        source,
        seconds=seconds,
        seed=seed,
        service=service,
        record=True,
        replan_s=0.1,
        expected_rates=(0.0,) * len(deployment.applications),
    )
    assert run.queries is not None
    queries = run.queries
    recent = Recent(0)
    names = [application.name for application in deployment.applications]
    came = np.stack([queries[name] for name in ("arrival_ns", "application", "deadline_ns")], axis=1)
    requests, rows = np.unique(came, axis=0, return_counts=True)
    for (arrival_ns, application, deadline_ns), count in zip(requests.tolist(), rows.tolist(), strict=True):
        recent.arrived(arrival_ns, names[application], count, deadline_ns - arrival_ns)
    recent.knows(evidence or {})
    for number, likely in enumerate(() if theta is None else theta):
        taken_for = int(np.nanargmax(likely)) if np.nanmax(likely, initial=0.0) > SURE else -1
        recent.classified(names[queries["application"][number]], taken_for)
    served = queries[queries["start_ns"] >= 0]
    batches = np.stack([served[name] for name in ("start_ns", "end_ns", "worker", "variant")], axis=1)
    for (start_ns, end_ns, worker, variant), size in zip(*np.unique(batches, axis=0, return_counts=True), strict=True):
        kind = deployment.workers[worker].kind
        profiled_ns = profiled_latencies_ns(deployment, int(variant), kind, int(size))
        recent.ran(deployment.variant_label(int(variant)), kind, int(size), int(end_ns - start_ns), *profiled_ns)
    present: dict[str, int] = {}
    for each in deployment.workers:
        present[each.kind] = present.get(each.kind, 0) + 1
    return recent.setting(int(seconds * 1e9), deployment, delays=Delays(), present=present)
