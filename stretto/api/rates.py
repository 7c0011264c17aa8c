"""How much one client may ask: requests a second, and worker time a second. Both are off unless they are wanted.

Worker time makes limits fair: a client whose queries are long pays more than one that sends many short ones. A query
pays its share of its batch, by the profile of the variant that answered. A request is admitted while its account is not
overdrawn. It pays at once what its application takes at least, so that a thousand at once are not all admitted, and
the difference when it ends; nothing where the server gave it up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from stretto.api.accounts import Account, Charge
from stretto.api.errors import ApiError, Reason
from stretto.api.messages import InferRequest
from stretto.core.application import Variant
from stretto.core.client import MAX_IDENTITY
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, NS_PER_S, Quantile
from stretto.live.requests import Request

if TYPE_CHECKING:
    from stretto.live.engine import Engine

BURST_S = 1.0  # so many seconds' worth can be saved up
BY_CLIENT, BY_TOKEN = "client", "token"
LOOKED_AT = 16  # accounts that might be forgotten, when there is no room for another
OTHERS = b"\0others"  # the account that newcomers share while there is no room
WORDS = {
    "requests": "more requests a second than one client may send; send fewer",
    "worker_time": "more worker time a second than one client may use; send fewer or shorter queries",
}
ANSWERED = (Outcome.ON_TIME, Outcome.LATE)
PAID_IN_FULL = (Outcome.FAILED, Outcome.DROPPED_CANCELLED)  # a worker may have run it, and its client is the reason


@dataclass(frozen=True)
class RateLimits:
    """Of each account; 0: no limit. `by` says what an account is: a `client_id`, or a bearer token."""

    requests_per_s: float = 0.0
    worker_ms_per_s: float = 0.0
    by: str = BY_CLIENT

    def __post_init__(self) -> None:
        if self.by not in (BY_CLIENT, BY_TOKEN):
            raise StrettoError(f"clients are limited by {BY_CLIENT} or by {BY_TOKEN}, not by {self.by[:20]!r}")

    @property
    def are_off(self) -> bool:
        return not self.requests_per_s and not self.worker_ms_per_s


class Rates:
    """The accounts of the clients that asked lately, at most `most`; on the loop's thread."""

    def __init__(self, limits: RateLimits, most: int) -> None:
        self.limits = limits
        self.refused = dict.fromkeys(WORDS, 0)
        self._most = most
        self._accounts: OrderedDict[str | bytes, Account] = OrderedDict()  # the one that asked last at the end
        self._worker_rate = limits.worker_ms_per_s * NS_PER_MS / NS_PER_S  # of each ns
        self._request_rate = limits.requests_per_s / NS_PER_S
        self._most_requests = max(1.0, limits.requests_per_s * BURST_S)
        self._most_worker_ns = limits.worker_ms_per_s * NS_PER_MS * BURST_S
        self._costs = WorkerTime()

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, now_ns: int, who: str | bytes, deployment: Deployment, application: int, rows: int) -> Charge:
        """ApiError where the account has nothing left."""
        account = self._account(now_ns, who)
        if self._request_rate:
            if account.requests < 1.0:
                raise self._refusal("requests", (1.0 - account.requests) / self._request_rate)
            account.requests -= 1.0
        paid_ns = 0.0
        if self._worker_rate:
            if account.worker_ns < 0.0:
                raise self._refusal("worker_time", -account.worker_ns / self._worker_rate)
            paid_ns = rows * self._costs.least_ns(deployment, application)
            account.worker_ns -= paid_ns
        return Charge(account, paid_ns)

    def charge(self, request: InferRequest, engine: Engine) -> None:
        """A request came. ApiError where its client asks more than it may."""
        generation = engine.generation
        number = generation.numbers.get(request.application)
        if number is None:
            return  # it is about to be served or to go, and is refused in a moment
        who: str | bytes = request.account
        if self.limits.by == BY_CLIENT:
            who = str(request.parameters.get("client_id", ""))[:MAX_IDENTITY]
        array = request.inputs[0].array if request.inputs else None
        rows = 1 if array is None or not array.ndim else len(array)
        request.charge = self.admit(engine.clock(), who, generation.deployment, number, rows)

    def settle(self, charge: Charge, ended: Request, engine: Engine) -> None:
        """A request has ended. Where its application is not served any more, nobody knows what it took."""
        generation = engine.generation
        number = generation.numbers.get(ended.application)
        if number is None or ended.outcome in PAID_IN_FULL or not self._worker_rate:
            return
        cost_ns = 0.0
        if ended.outcome in ANSWERED:
            cost_ns = ended.rows * self._costs.mean_ns(
                generation.deployment, number, tuple(ended.variants), ended.batch
            )
        charge.account.worker_ns += charge.paid_ns - cost_ns

    def _account(self, now_ns: int, who: str | bytes) -> Account:
        account = self._accounts.get(who)
        if account is None:
            if len(self._accounts) >= self._most and not self._forget_one(now_ns):
                if who != OTHERS:
                    return self._account(now_ns, OTHERS)
                self._accounts.popitem(last=False)
            account = self._accounts[who] = Account(now_ns, self._most_requests, self._most_worker_ns)
        else:
            self._accounts.move_to_end(who)
            passed_ns, account.at_ns = now_ns - account.at_ns, now_ns
            account.requests = min(self._most_requests, account.requests + passed_ns * self._request_rate)
            account.worker_ns = min(self._most_worker_ns, account.worker_ns + passed_ns * self._worker_rate)
        return account

    def _forget_one(self, now_ns: int) -> bool:
        """An account that has all it can have again is as good as a new one."""
        for who, account in islice(self._accounts.items(), LOOKED_AT):
            passed_ns = now_ns - account.at_ns
            if (
                account.requests + passed_ns * self._request_rate >= self._most_requests
                and account.worker_ns + passed_ns * self._worker_rate >= self._most_worker_ns
            ):
                del self._accounts[who]
                return True
        return False

    def _refusal(self, limit: str, wait_ns: float) -> ApiError:
        self.refused[limit] += 1
        return ApiError(Reason.OVERLOADED, WORDS[limit], max(1, math.ceil(wait_ns / NS_PER_S)))


class WorkerTime:
    """Profiled time of a query, on the first kind of worker that its variant runs on: one currency for all."""

    def __init__(self) -> None:
        self._deployment: Deployment | None = None
        self._least: dict[int, float] = {}
        self._mean: dict[tuple[int, tuple[str, ...], int], float] = {}

    def least_ns(self, deployment: Deployment, application: int) -> float:
        """Of the fastest variant in its largest batch."""
        self._use(deployment)
        least_share_ns = self._least.get(application)
        if least_share_ns is None:
            variants = deployment.applications[application].variants
            least_share_ns = self._least[application] = min(
                _share_ns(deployment, variant, None) for variant in variants
            )
        return least_share_ns

    def mean_ns(self, deployment: Deployment, application: int, names: tuple[str, ...], batch: int) -> float:
        """Over the variants that answered, in a batch of this size. One that is not served any more costs nothing, nor
        does an answer without a variant.
        """
        self._use(deployment)
        mean_share_ns = self._mean.get((application, names, batch))
        if mean_share_ns is None:
            variants = [each for each in deployment.applications[application].variants if each.name in names]
            total = sum(_share_ns(deployment, variant, batch) for variant in variants)
            mean_share_ns = self._mean[application, names, batch] = total / max(1, len(names))
        return mean_share_ns

    def _use(self, deployment: Deployment) -> None:
        if deployment is not self._deployment:
            self._deployment = deployment
            self._least.clear()
            self._mean.clear()


def _share_ns(deployment: Deployment, variant: Variant, batch: int | None) -> float:
    profiles = [profile for kind in deployment.kinds if (profile := variant.profile_on(kind)) is not None]
    if not profiles:
        return 0.0
    size = profiles[0].max_batch if batch is None else max(1, min(batch, profiles[0].max_batch))
    return profiles[0].latency_ns(size, Quantile.MEAN) / size
