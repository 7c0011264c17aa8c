"""What Jellyfish is compared with (sections VI-C and VI-D): static models behind one queue, and data adaptation that
does not know the models, where a share of the SLO is set aside for computing.

Each is a planner that looks at clients differently, and a rule by which clients choose their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stretto.core.client import Client, Network
from stretto.core.deployment import Deployment
from stretto.core.plan import Plan
from stretto.core.view import Planner, View
from stretto.sim.network.clients import Adaptation, Sending

AT_ONCE = 1e15  # bytes/s of a network that takes no time


@dataclass(frozen=True)
class Strategy:
    """`plans` wraps the planner that is compared; `sends` is the clients' rule."""

    plans: Callable[[Planner], Planner]
    sends: Sending


@dataclass(eq=False)
class KnownFrames:
    """The planner knows that every frame has the bytes of one size, whatever model it is for (DA off)."""

    planner: Planner
    size: str
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _alike: Deployment | None = field(default=None, init=False, repr=False)

    def __call__(self, view: View) -> Plan:
        if view.deployment is not self._deployment or self._alike is None:
            self._deployment, self._alike = view.deployment, _of_one_size(view.deployment, self.size)
        return self.planner(replace(view, deployment=self._alike, clients=lambda: _as_expected(view.clients())))


def _as_expected(clients: tuple[Client, ...]) -> tuple[Client, ...]:
    """A ratio to another size's bytes says nothing here."""
    return tuple(replace(client, frame_ratio=1.0) for client in clients)


def _of_one_size(deployment: Deployment, size: str) -> Deployment:
    sent = next(variant.frame_bytes for variant in deployment.variants if variant.name == size)
    applications = tuple(
        replace(each, variants=tuple(replace(variant, frame_bytes=sent) for variant in each.variants))
        for each in deployment.applications
    )
    return Deployment(applications, deployment.workers, deployment.quantile)


@dataclass(frozen=True)
class SetAside:
    """The planner has a fixed share of every SLO for computing, and knows nothing of networks (DA bw and DA slo)."""

    planner: Planner
    share: float

    def __call__(self, view: View) -> Plan:
        return self.planner(replace(view, clients=lambda: tuple(self._seen(view, each) for each in view.clients())))

    def _seen(self, view: View, client: Client) -> Client:
        application_slo_ns = next(
            (each.slo_ns for each in view.deployment.applications if each.name == client.application), 0
        )
        slo_ns = round(self.share * (client.slo_ns or application_slo_ns))
        return replace(client, network=Network(AT_ONCE, 0), slo_ns=max(1, slo_ns))


def data_adaptations(middle: str) -> dict[str, Strategy]:
    """The strategies of section VI-D by the names of figure 12, `middle` being the variant of the fixed size."""
    strategies = {
        "DA_off": Strategy(lambda planner: KnownFrames(planner, middle), Sending(Adaptation.FIXED, middle)),
    }
    for percent in (50, 75):
        share = percent / 100
        aside = _set_aside(share)
        strategies[f"DA_bw CB {percent}%"] = Strategy(aside, Sending(Adaptation.BANDWIDTH))
        strategies[f"DA_slo CB {percent}%"] = Strategy(aside, Sending(Adaptation.SLO, compute_share=share))
    return strategies


def _set_aside(share: float) -> Callable[[Planner], Planner]:
    return lambda planner: SetAside(planner, share)
