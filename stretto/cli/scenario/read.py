"""A scenario as a whole: what to serve, with what, under which load, planned by whom, for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stretto.cli.scenario.autoscale import ScenarioScaling, read_autoscale
from stretto.cli.scenario.clients import read_clients, without_networks
from stretto.cli.scenario.deployment import QUANTILES, read_deployment
from stretto.cli.scenario.evidence import read_evidence
from stretto.cli.scenario.load import read_load
from stretto.config.fields import Fields, parse_fields, read_fields, suggestion
from stretto.core.application import check_name
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.profile import MAX_LATENCY_MS, NS_PER_MS, Quantile
from stretto.core.verdict import GivenValue
from stretto.planners.ports import Ports
from stretto.planners.registry import ENTRIES, NAMES, planner_entry
from stretto.planning.served import served_session
from stretto.planning.session import Rhythm, Session
from stretto.sim.arrivals import Client, Clients, Load, Source
from stretto.sim.network.clients import NetworkClient
from stretto.sim.service import Deterministic, Empirical, Lognormal, Service
from stretto.twin.classes import Labelled

MAX_SECONDS = 86_400.0 * 7
MAX_SEED = 2**63 - 1
MAX_CV = 10.0
MAX_REPLANS = 1_000_000


@dataclass(frozen=True)
class PlannerChoice:
    """A planner by name; `options` and `variants` are what the scenario says about it."""

    name: str = "symphony"
    options: dict[str, GivenValue] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    replan_s: float | None = None  # None: as often as it is made for


@dataclass(frozen=True)
class Scenario:
    """Everything that a run needs. Same scenario, same seed, same result."""

    name: str
    deployment: Deployment
    source: Source
    service: Service = field(default_factory=Deterministic)
    planner: PlannerChoice = field(default_factory=PlannerChoice)
    delays: Delays = field(default_factory=Delays)
    seed: int = 1
    seconds: float = 30.0
    warmup_seconds: float = 0.0
    correction: float = 0.0  # step with which measured latency corrects the profile
    clients: tuple[NetworkClient, ...] = ()  # behind networks; `source` is then what they would send without
    autoscale: ScenarioScaling | None = None  # `deployment` is then what is there at the start
    evidence: Mapping[str, Labelled] = field(default_factory=dict)  # by application: what it says of samples

    def __post_init__(self) -> None:
        entry = planner_entry(self.planner.name)
        stated_s, by_windows = self.planner.replan_s, entry.by_windows and self.planner.replan_s is None
        rhythm = Rhythm(stated_s or entry.replan_s or 0.0, by_windows, if_swapped="judge" in entry.ports)
        replan_s = rhythm.period_for(self.deployment) or None
        if replan_s is not None and self.seconds / replan_s > MAX_REPLANS:
            raise StrettoError(f"planning each {replan_s:g} s is more than {MAX_REPLANS} times in {self.seconds:g} s")

    def session(self, ports: Ports | None = None) -> Session:
        """The planner as a server would have it; `ports` are for one that takes them."""
        choice = self.planner
        return served_session(
            choice.name, choice.options, variants=choice.variants, ports=ports, period_s=choice.replan_s
        )

    def with_planner(self, name: str) -> Scenario:
        """The same under another planner. Options stay with the planner that they were written for."""
        if name == self.planner.name:
            return self
        return replace(self, planner=PlannerChoice(name, {}, self.planner.variants))

    def at_rate(self, rate: float) -> Scenario:
        """The same at another mean rate (queries/s); clients keep their shares of it."""
        if self.clients:
            raise StrettoError("clients behind networks have the rates that they have; give a [load] to vary the rate")
        if isinstance(self.source, Load):
            return replace(self, source=replace(self.source, rate=rate))
        if isinstance(self.source, Clients):
            clients = self.source.clients
            factor = rate / sum(client.own_process().mean_rate() for client in clients)
            return replace(self, source=replace(self.source, clients=tuple(_faster(each, factor) for each in clients)))
        raise StrettoError("a recorded log has the rate that it has; give a [load] of another kind to vary the rate")


def _faster(client: Client, factor: float) -> Client:
    return replace(client, rate=client.own_process().mean_rate() * factor)


def read_scenario(file: Path) -> Scenario:
    """From a TOML file; whatever is wrong is told as FILE:LINE."""
    return _scenario(read_fields(file), file.stem)


def parse_scenario(text: str, label: str = "scenario", folder: Path | None = None) -> Scenario:
    """From TOML text; files that it names are looked for in `folder`."""
    return _scenario(parse_fields(text, label, folder), "scenario")


def _scenario(top: Fields, default_name: str) -> Scenario:
    name = top.text("name", default_name)
    with top.at("name"):
        check_name("scenario", name.replace(" ", "-"))
    seed = top.integer("seed", 0, MAX_SEED, 1)
    seconds = top.number("seconds", 0, MAX_SECONDS, 30.0, above=True)
    warmup_seconds = top.number("warmup_seconds", 0, MAX_SECONDS, 0.0)
    if warmup_seconds >= seconds:
        top.fail(f"warmup_seconds must be below seconds, which is {seconds:g}", "warmup_seconds")
    choice, quantile = _planner(top)
    deployment, evidence = read_evidence(top, read_deployment(top, quantile))
    _check_variants(top, choice, deployment)
    clients: tuple[NetworkClient, ...] = ()
    source: Source
    if top.has("clients"):
        if top.has("load"):
            top.fail("[load] and [[clients]] both say what comes; keep one", "load")
        clients = read_clients(top, deployment.applications)
        source = without_networks(clients)
    else:
        source = read_load(top, deployment.applications)
    with top.at("clients" if clients else "load"):
        source.expected_rates(deployment, seconds)
    service, correction = _service(top)
    delays = _network(top)
    autoscale = read_autoscale(top, deployment)
    if autoscale is not None and clients:
        top.fail("[autoscale] does not go with [[clients]]; give a [load]", "autoscale")
    top.done()
    with top.at("planner"):
        times = (seed, seconds, warmup_seconds)
        scenario = Scenario(name, deployment, source, service, choice, delays, *times, correction, clients, autoscale)
        return replace(scenario, evidence=evidence)


def _planner(top: Fields) -> tuple[PlannerChoice, Quantile]:
    part = top.part("planner")
    if part is None:
        return PlannerChoice(), Quantile.P95
    name = part.text("name")
    if ":" not in name:
        part.choice("name", NAMES)
    with part.at("name"):
        entry = planner_entry(name)
    quantile = Quantile[part.choice("quantile", QUANTILES, "p95").upper()]
    replan_s = part.optional_number("replan_seconds", 0.001, MAX_SECONDS)
    options: dict[str, GivenValue] = {}
    for option in entry.options:
        if not part.has(option.name):
            continue
        match option.kind:
            case "flag":
                options[option.name] = part.flag(option.name, False)
            case "integer":
                options[option.name] = part.integer(option.name, int(option.low), int(option.high))
            case "number":
                options[option.name] = part.number(option.name, option.low, option.high)
            case "choice":
                options[option.name] = part.choice(option.name, option.choices)
            case "file":  # relative to the folder of the scenario
                options[option.name] = str(part.document.folder / part.text(option.name))
    named = part.part("variants")
    variants = {} if named is None else {application: named.text(application) for application in named.table}
    part.done([option.name for other in ENTRIES for option in other.options])
    return PlannerChoice(name, options, variants, replan_s), quantile


def _check_variants(top: Fields, choice: PlannerChoice, deployment: Deployment) -> None:
    """[planner.variants] names applications and variants that exist."""
    planner = top.part("planner")
    named = None if planner is None else planner.part("variants")
    if named is None:
        return
    known = {each.name: [variant.name for variant in each.variants] for each in deployment.applications}
    for application, variant in choice.variants.items():
        if application not in known:
            named.fail(
                f"there is no application {application}; {suggestion(application, list(known)[:20])}", application
            )
        if variant not in known[application]:
            named.fail(
                f"application {application} has no variant {variant}; {suggestion(variant, known[application])}",
                application,
            )


def _service(top: Fields) -> tuple[Service, float]:
    part = top.part("service")
    if part is None:
        return Deterministic(), 0.0
    correction = part.number("correction", 0, 0.5, 0.0)
    kind = part.choice("kind", ("deterministic", "lognormal", "empirical"), "deterministic")
    service: Service
    with part.at():
        match kind:
            case "lognormal":
                service = Lognormal(part.number("cv", 0, MAX_CV))
            case "empirical":
                service = Empirical(part.numbers("ratios", 1e-6, 999) if part.has("ratios") else ())
            case _:
                quantile = part.choice("quantile", QUANTILES) if part.has("quantile") else None
                service = Deterministic(None if quantile is None else Quantile[quantile.upper()])
    part.done(("cv", "ratios", "quantile"))
    return service, correction


def _network(top: Fields) -> Delays:
    part = top.part("network")
    if part is None:
        return Delays()
    names = ("control_ms", "data_ms", "timer_ms", "evidence_ms")
    values = [round(part.number(name, 0, MAX_LATENCY_MS, 0.0) * NS_PER_MS) for name in names]
    part.done()
    return Delays(control_ns=values[0], data_ns=values[1], timer_ns=values[2], evidence_ns=values[3])
