"""[[clients]]: clients behind networks, whose frames take the place of a [load]."""

from __future__ import annotations

from pathlib import Path

from stretto.config.fields import Fields, shown, suggestion
from stretto.core.application import Application
from stretto.core.bandwidth import BYTES_PER_MBIT, MAX_MBIT, MAX_STEP_S, Bandwidth, TraceForm, bandwidth_from, constant
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.sim.arrivals import Client, Clients
from stretto.sim.network.clients import MAX_DELAY_NS, MAX_FPS, MAX_RATIO, Adaptation, NetworkClient, Sending
from stretto.sim.network.run import MAX_CLIENTS
from stretto.sim.processes import Uniform

MAX_SLO_MS = 3_600_000.0
MAX_SECONDS = 86_400.0 * 7
MAX_TRACE_BYTES = 1 << 27
SPREAD = 0.618034  # of a trace's period, that each further client begins later in it: clients alike are spread evenly


def read_clients(top: Fields, applications: tuple[Application, ...]) -> tuple[NetworkClient, ...]:
    """Every client that the scenario names; `count` makes several alike, which differ in when they join and where in
    the trace they begin.
    """
    clients: list[NetworkClient] = []
    for fields in top.parts("clients"):
        group = _group(fields, applications)
        if len(clients) + len(group) > MAX_CLIENTS:
            fields.fail(f"there are more than {MAX_CLIENTS} clients", "count")
        clients += group
    if not clients:
        top.fail("clients is empty; add a [[clients]]", "clients")
    return tuple(clients)


def without_networks(clients: tuple[NetworkClient, ...]) -> Clients:
    """The same frames as if networks took no time, for commands that know no networks."""
    return Clients(tuple(Client(each.application, Uniform(), each.fps, each.slo_ns) for each in clients))


def _group(fields: Fields, applications: tuple[Application, ...]) -> list[NetworkClient]:
    names = [application.name for application in applications]
    application = fields.text("application", names[0] if len(names) == 1 else None)
    if application not in names:
        wanted = suggestion(application, names[:20])
        fields.fail(f"there is no application {shown(application)}; {wanted}", "application")
    variants = applications[names.index(application)].variants
    if not any(variant.frame_bytes for variant in variants):
        fields.fail(f"no variant of application {application} says frame_bytes, so that nothing can be sent to it")
    count = fields.integer("count", 1, MAX_CLIENTS, 1)
    fps = fields.number("fps", 0, MAX_FPS, above=True)
    slo_ms = fields.optional_number("slo_ms", 0, MAX_SLO_MS, above=True)
    bandwidth = _bandwidth(fields)
    period_s = bandwidth.period_ns / NS_PER_S
    offset_s = fields.number("offset_seconds", 0, MAX_SECONDS, 0.0)
    offset_step_s = fields.number("offset_step_seconds", 0, MAX_SECONDS, SPREAD * period_s)
    delay_ns = round(fields.number("delay_ms", 0, MAX_DELAY_NS / NS_PER_MS, 0.0) * NS_PER_MS)
    jitter = fields.number("jitter", 0, 1, 0.0)
    frame_ratio = fields.number("frame_ratio", 0, MAX_RATIO, 1.0, above=True)
    frame_spread = fields.number("frame_spread", 0, 1, 0.0)
    joins_s = fields.number("joins_seconds", 0, MAX_SECONDS, 0.0)
    join_step_s = fields.number("join_step_seconds", 0, MAX_SECONDS, 0.0)
    leaves_s = fields.optional_number("leaves_seconds", 0, MAX_SECONDS, above=True)
    sending = _sending(fields, [variant.name for variant in variants if variant.frame_bytes])
    fields.done(("step_seconds", "form", "scale", "largest", "compute_share"))
    with fields.at("leaves_seconds" if leaves_s is not None else None):
        return [
            NetworkClient(
                application,
                fps,
                bandwidth.shifted(round((offset_s + number * offset_step_s) * NS_PER_S)),
                None if slo_ms is None else max(1, round(slo_ms * NS_PER_MS)),
                delay_ns,
                delay_ns,
                jitter,
                frame_ratio,
                frame_spread,
                joins_s + number * join_step_s,
                leaves_s,
                sending,
            )
            for number in range(count)
        ]


def _bandwidth(fields: Fields) -> Bandwidth:
    if fields.has("network") == fields.has("mbit_per_s"):
        fields.fail("give either network, a file with a bandwidth trace, or mbit_per_s for one that never changes")
    if fields.has("mbit_per_s"):
        return constant(fields.number("mbit_per_s", 0, MAX_MBIT, above=True) * BYTES_PER_MBIT)
    path = fields.document.folder / fields.text("network")
    form = TraceForm(fields.choice("form", [form.value for form in TraceForm], TraceForm.MBIT.value))
    step_s = fields.number("step_seconds", 1e-6, MAX_STEP_S, 1.0) if form is TraceForm.MBIT else 1.0
    scale = fields.number("scale", 0, 1e6, 1.0, above=True)
    with fields.at("network"):
        return bandwidth_from(_text(fields, path), form, step_s=step_s).scaled(scale)


def _text(fields: Fields, path: Path) -> str:
    try:
        if not path.is_file():
            fields.fail(f"there is no file {path.name} beside the scenario", "network")
        if path.stat().st_size > MAX_TRACE_BYTES:
            fields.fail(f"{path.name} is larger than {MAX_TRACE_BYTES} bytes", "network")
        return path.read_text(encoding="ascii")
    except UnicodeDecodeError:
        fields.fail(f"{path.name} is no trace; it has one number a line", "network")
    except OSError as error:
        fields.fail(f"{path.name} cannot be read ({error.strerror or 'input error'})", "network")


def _sending(fields: Fields, sizes: list[str]) -> Sending:
    adaptation = Adaptation(fields.choice("adaptation", [each.value for each in Adaptation], Adaptation.TOLD.value))
    largest = fields.choice("largest", sizes) if fields.has("largest") else ""
    share = fields.number("compute_share", 0, 0.99, 0.0) if adaptation is Adaptation.SLO else 0.0
    with fields.at("adaptation"):
        return Sending(adaptation, largest, share)
