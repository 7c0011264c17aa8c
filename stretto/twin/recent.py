"""What came and ran lately, in rings of bounded size: fed by a driver event by event, read as a Setting.

Everything is known by name, so that it outlives a change of the deployment. Each event costs the same, however many
came before. There is no clock here: times come in as arguments.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import MAX_DELAY_NS, Client
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_S, Quantile
from stretto.sim.arrivals import MAX_DEADLINE_NS
from stretto.sim.network.clients import MAX_FPS
from stretto.sim.residuals import RATIOS, Residuals, bucket_of_batch
from stretto.twin.classes import Labelled
from stretto.twin.clients import FASTEST, MOST_SECONDS, SLOWEST, ClientConditions
from stretto.twin.clients import MOST_CLIENTS as MOST_CONDITIONS
from stretto.twin.setting import Setting, ladders_of
from stretto.twin.stretch import MOST_CLASSES, MOST_REQUESTS, REQUEST, SHORTEST_SPAN_NS, ArrivalStretch

MOST_RUNS = 1024  # of a variant on a kind, by bucket of batch sizes
MOST_DELAYS = 2048
MOST_NAMES = 65_536  # applications, or variants and kinds
MOST_CLIENTS = 65_536
MOST_NETWORKS = 16  # samples of one client
LEAST_VARIANCE = 1e-8  # of logarithms of ratios: what is below is rounding
CLEAR = 3.0  # log odds of 20 to 1
TOGETHER = 64  # turns of an event loop that are written at once

Together = tuple[int, NDArray[np.int64], NDArray[np.int64]]  # a moment, and slacks and priorities of what came then


class Ring:
    """The last `most` rows of `width` whole numbers (or floats, by `code`); memory grows as they come."""

    def __init__(self, most: int, width: int = 1, code: str = "q") -> None:
        self.count = 0  # that ever came
        self._most, self._width = most, width
        self._values = array(code)

    def add(self, *row: float) -> None:
        if self.count < self._most:
            self._values.extend(row)  # type: ignore[arg-type]
        else:
            at = self.count % self._most * self._width
            for value in row:
                self._values[at] = value  # type: ignore[call-overload]
                at += 1
        self.count += 1

    def add_many(self, rows: NDArray[np.int64]) -> None:
        """[row, column], of whole numbers."""
        width, taken = self._width, 0
        while taken < len(rows):
            at = self.count % self._most
            some = array(self._values.typecode, rows[taken : taken + self._most - at].tobytes())
            self._values[at * width : at * width + len(some)] = some  # behind the end it grows
            taken += len(some) // width
            self.count += len(some) // width

    @property
    def has_forgotten(self) -> bool:
        return self.count > self._most

    def rows(self) -> NDArray[Any]:
        """[row, column], the oldest first."""
        values = np.array(self._values).reshape(-1, self._width)
        return np.roll(values, -(self.count % self._most), axis=0) if self.has_forgotten else values


class _Application:
    def __init__(self, requests: int) -> None:
        self._requests = Ring(requests, 5)
        self._together: list[Together] = []  # that came since, and are not in the ring yet
        self.classes = Ring(requests)
        self.queries = 0  # that ever came

    def came_together(self, came: Together) -> None:
        self._together.append(came)
        self.queries += len(came[1])
        if len(self._together) >= TOGETHER:
            self.requests  # noqa: B018, for what it does

    @property
    def requests(self) -> Ring:
        """With all that came. To write many turns of an event loop at once costs little more than to write one."""
        if self._together:
            together, self._together = self._together, []
            moments_ns, slacks_ns, priorities = zip(*together, strict=True)
            rows = np.empty((sum(map(len, slacks_ns)), 5), np.int64)
            rows[:, 0] = np.repeat(moments_ns, [len(slacks) for slacks in slacks_ns])
            rows[:, 1] = np.concatenate(slacks_ns).clip(0, MAX_DEADLINE_NS)
            rows[:, 2], rows[:, 3] = 1, -1
            rows[:, 4] = np.concatenate(priorities)
            self._requests.add_many(rows)
        return self._requests


class Recent:
    """`began_ns` is when it began to listen. `longest_ns` bounds how far back a stretch of arrivals goes."""

    def __init__(
        self, began_ns: int, *, requests: int = MOST_REQUESTS, runs: int = MOST_RUNS, longest_ns: int | None = None
    ) -> None:
        if not (1 <= requests <= MOST_REQUESTS and 1 <= runs <= MOST_RUNS):
            raise StrettoError(f"1 to {MOST_REQUESTS} requests and 1 to {MOST_RUNS} runs can be remembered")
        self._began_ns = began_ns
        self._most_requests, self._most_runs, self._longest_ns = requests, runs, longest_ns
        self._applications: dict[str, _Application] = {}
        self._runs: dict[tuple[str, str], dict[int, Ring]] = {}  # by application/variant and kind, then bucket
        self._handoffs, self._overruns = Ring(MOST_DELAYS), Ring(MOST_DELAYS)
        self._networks: dict[int, Ring] = {}
        self._clients: dict[tuple[str, str], tuple[Client, deque[float]]] = {}  # with the last seconds' bandwidths
        self._evidence: dict[str, Labelled] = {}  # by application
        self._looked = -1  # second of the last look at clients

    # -- what a driver tells ------------------------------------------------------------------------------------------

    def arrived(
        self, now_ns: int, application: str, rows: int, slack_ns: int, client: int = -1, priority: int = 0
    ) -> None:
        """A request came; `slack_ns` is from now to its deadline."""
        heard = self._heard_of(application)
        if heard is not None:
            heard.requests.add(now_ns, min(max(0, slack_ns), MAX_DEADLINE_NS), rows, client, priority)
            heard.queries += rows

    def arrived_many(
        self, now_ns: int, application: str, slacks_ns: NDArray[np.int64], priorities: NDArray[np.int64]
    ) -> None:
        """Requests of one query each came together, of clients that are not known."""
        heard = self._heard_of(application)
        if heard is not None:
            heard.came_together((now_ns, slacks_ns, priorities))

    def _heard_of(self, application: str) -> _Application | None:
        """None where too many others were."""
        heard = self._applications.get(application)
        if heard is None and len(self._applications) < MOST_NAMES:
            heard = self._applications[application] = _Application(self._most_requests)
        return heard

    def classified(self, application: str, query_class: int) -> None:
        """The class of one query of an application became known, or that it cannot be (-1)."""
        heard = self._applications.get(application)
        if heard is not None and -1 <= query_class < MOST_CLASSES:
            heard.classes.add(query_class)

    def knows(self, evidence: Mapping[str, Labelled]) -> None:
        """What evidence says of labelled samples, by application; from now on. What was told by other evidence is
        forgotten.
        """
        self._evidence = dict(evidence)
        for heard in self._applications.values():
            heard.classes = Ring(self._most_requests)

    def ran(
        self, variant: str, kind: str, batch: int, took_ns: int, profiled_ns: int, mean_ns: int | None = None
    ) -> None:
        """A batch of application/variant ran on a kind of worker; `profiled_ns` is the profile's latency for it, at the
        quantile that decisions rest on, and `mean_ns` that in the mean, where it is another.
        """
        if took_ns <= 0 or profiled_ns <= 0 or batch < 1:
            return
        buckets = self._runs.get((variant, kind))
        if buckets is None:
            if len(self._runs) >= MOST_NAMES:
                return
            buckets = self._runs[variant, kind] = {}
        bucket = bucket_of_batch(batch)
        if bucket not in buckets:
            buckets[bucket] = Ring(self._most_runs, 2, code="d")
        ratio = min(max(took_ns / profiled_ns, RATIOS[0]), RATIOS[1])
        buckets[bucket].add(ratio, ratio * profiled_ns / (mean_ns or profiled_ns))

    def handed_over(self, took_ns: int) -> None:
        """A batch was so long on its way to a worker that had nothing else, and back."""
        self._handoffs.add(took_ns)

    def ended(self, overrun_ns: int) -> None:
        """A batch ended so much later (or sooner) than expected when it was decided."""
        self._overruns.add(overrun_ns)

    def network(self, client: int, mbit_per_s: float) -> None:
        """The network to a client was measured."""
        if client not in self._networks and len(self._networks) >= MOST_CLIENTS:
            return
        self._networks.setdefault(client, Ring(MOST_NETWORKS, code="d")).add(mbit_per_s)

    def clients(self, now_ns: int, seen: Sequence[Client]) -> None:
        """All clients at one instant. A second's bandwidth is that of its first look; who is not seen is forgotten."""
        second = now_ns // NS_PER_S
        if second == self._looked:
            return
        self._looked = second
        known = self._clients
        self._clients = {}
        for client in seen[:MOST_CONDITIONS]:
            bandwidth = client.network.bytes_per_s
            if bandwidth is None or not 0 < client.rate <= MAX_FPS:
                continue
            past = known.get(client.key, (client, deque(maxlen=MOST_SECONDS)))[1]
            past.append(min(max(bandwidth, SLOWEST), FASTEST))
            self._clients[client.key] = (client, past)

    def serves(self, deployment: Deployment) -> None:
        """Another deployment is served: what it does not have is forgotten."""
        names = {application.name for application in deployment.applications}
        labels = {deployment.variant_label(variant) for variant in range(len(deployment.variants))}
        self._applications = {name: heard for name, heard in self._applications.items() if name in names}
        self._runs = {where: buckets for where, buckets in self._runs.items() if where[0] in labels}

    # -- what is read -------------------------------------------------------------------------------------------------

    def setting(
        self, now_ns: int, deployment: Deployment, *, delays: Delays | None = None, present: Mapping[str, int]
    ) -> Setting:
        """All of it as of now, for the applications and variants of a deployment."""
        labels = {deployment.variant_label(variant) for variant in range(len(deployment.variants))}
        runs = {
            where: {bucket: ring.rows() for bucket, ring in buckets.items()}
            for where, buckets in sorted(self._runs.items())
            if where[0] in labels
        }
        row = _followed(runs)
        return Setting(
            arrivals={each.name: self._stretch(now_ns, each.name) for each in deployment.applications},
            residuals={
                where: Residuals(
                    {bucket: sample[:, 0 if row is None else 1].clip(*RATIOS) for bucket, sample in buckets.items()}
                )
                for where, buckets in runs.items()
            },
            delays=delays or Delays(),
            present=dict(present),
            handoff_ns=self._handoffs.rows()[:, 0].astype(np.int64),
            overrun_ns=self._overruns.rows()[:, 0].astype(np.int64),
            networks={client: tuple(ring.rows()[:, 0].tolist()) for client, ring in sorted(self._networks.items())},
            row=row,
            clients=tuple(
                ClientConditions(
                    client.application,
                    client.rate,
                    tuple(past),
                    client.slo_ns,
                    min(client.network.delay_ns or 0, MAX_DELAY_NS),
                    client.frame_ratio,
                )
                for client, past in self._clients.values()
                if client.application in {application.name for application in deployment.applications}
            ),
            ladders=ladders_of(deployment),
            evidence={
                each.name: self._evidence[each.name] for each in deployment.applications if each.name in self._evidence
            },
        )

    def has_arrivals(self, application: str) -> bool:
        return application in self._applications

    def _stretch(self, now_ns: int, application: str) -> ArrivalStretch:
        """From when it began to listen until now; or from the oldest request that is remembered, which then only marks
        the start.
        """
        heard = self._applications.get(application)
        if heard is None:
            return ArrivalStretch(0.0)
        rows = heard.requests.rows().astype(np.int64, copy=False)
        start_ns = self._began_ns
        if heard.requests.has_forgotten:
            start_ns, rows = int(rows[0, 0]), rows[1:]
        if self._longest_ns is not None and now_ns - start_ns > self._longest_ns:
            start_ns = now_ns - self._longest_ns
        rows = rows[(rows[:, 0] >= start_ns) & (rows[:, 0] <= now_ns)]
        requests = np.zeros(len(rows), dtype=REQUEST)
        for place, name in enumerate(REQUEST.names or ()):
            requests[name] = rows[:, place]
        requests["offset_ns"] -= start_ns
        span_ns = max(now_ns - start_ns, int(requests["offset_ns"].max(initial=-1)) + 1, SHORTEST_SPAN_NS)
        return ArrivalStretch.of(requests, span_ns, self._shares(heard))

    @staticmethod
    def _shares(heard: _Application) -> tuple[float, ...]:
        if not heard.classes.count:
            return ()
        classes = heard.classes.rows()[:, 0].astype(np.int64)
        told = classes[classes >= 0]
        # Who also tells of queries that it is not sure of tells of all; else the rest are those that nobody told of.
        is_of_all = len(told) < len(classes)
        part = 1.0 if is_of_all else min(1.0, heard.classes.count / max(heard.queries, 1))
        return tuple((np.bincount(told) * (part / len(classes))).tolist())


def _followed(runs: Mapping[tuple[str, str], Mapping[int, NDArray[np.float64]]]) -> Quantile | None:
    """The row of the profiles that all runs on a kind are more evenly away from; None: the one that decisions rest on.

    Run times may be as profiled at one quantile, or spread around the mean, and the two are not equally far apart for
    all batches: residuals of small ones, taken to the other row, would tell a wrong tale of large ones. All variants
    speak together: where each ran in batches of one size alone, it does not tell by itself which row it follows. Where
    all of them are too few to tell, it is the row that they are nearer to in the mean.
    """
    by_kind: dict[str, list[NDArray[np.float64]]] = {}
    for (_, kind), buckets in runs.items():
        by_kind.setdefault(kind, []).extend(buckets.values())
    evidence, distance = 0.0, np.zeros(2)  # log odds that they follow the mean; how far they are from either row
    for samples in by_kind.values():
        ratios = np.concatenate(samples)
        variance = np.maximum(np.log(ratios).var(axis=0), LEAST_VARIANCE)
        evidence += 0.5 * len(ratios) * float(np.log(variance[0] / variance[1]))
        distance += len(ratios) * np.abs(np.log(ratios.mean(axis=0)))
    follows_mean = distance[1] < distance[0] if abs(evidence) < CLEAR else evidence > 0
    return Quantile.MEAN if follows_mean else None


def profiled_latencies_ns(deployment: Deployment, variant: int, kind: str, batch: int) -> tuple[int, int]:
    """What residuals may be ratios to: the latency that decisions rest on, and the mean; 0 where the profile does not
    say.
    """
    profile = deployment.variants[variant].profile_on(kind)
    if profile is None or not 1 <= batch <= profile.max_batch:
        return 0, 0
    return profile.latency_ns(batch, deployment.quantile), profile.latency_ns(batch, Quantile.MEAN)
