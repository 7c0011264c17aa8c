"""[load]: where the queries come from. One process for all applications, or clients with a stream each, or a log."""

from __future__ import annotations

from stretto.config.fields import Fields, shown, suggestion
from stretto.core.application import Application
from stretto.core.profile import NS_PER_MS
from stretto.sim.arrivals import MAX_CLIENTS, Client, Clients, Even, Load, Mix, Popularity, Source, Weights, Zipf
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import MAX_RATE, MIN_RATE, SHAPES, Gamma, Poisson, Process, TwoLevel, Uniform
from stretto.sim.query_log import QueryLog
from stretto.sim.traces import RateTrace

KINDS = ("uniform", "poisson", "gamma", "markov", "two_level", "trace", "log")
POPULARITIES = ("even", "zipf")
MAX_LOAD_SECONDS = 86_400.0 * 7
MAX_DEADLINE_MS = 3_600_000.0
# Every key that some kind of load has, so that one beside the wrong kind is told apart from a misspelt one.
ALL_KEYS = (
    *("kind", "rate", "shape", "d0", "d1", "low", "high", "low_seconds", "high_seconds", "file", "interpolation"),
    *("scale", "from_first", "popularity", "zipf_exponent", "mix", "client"),
    *("application", "count", "deadline_ms", "priority"),
)


def read_load(top: Fields, applications: tuple[Application, ...]) -> Source:
    """The source that feeds the simulator."""
    load = top.part("load")
    if load is None:
        top.fail('there is no [load] and no [[clients]]; add a load with kind = "poisson" and rate = 1000, say')
    names = [application.name for application in applications]
    source: Source
    if load.has("client"):
        source = _clients(load, names)
    elif load.table.get("kind") == "log":
        load.choice("kind", KINDS)
        from_first = load.flag("from_first", False)
        with load.at("file"):
            source = QueryLog.read(_file(load), from_first)
    else:
        process, rate = _process(load, KINDS)
        source = Load(process, rate, _popularity(load, len(names)), _mix(load, names))
    load.done(ALL_KEYS)
    return source


def _process(fields: Fields, kinds: tuple[str, ...]) -> tuple[Process, float | None]:
    """The arrival process and its mean rate; a rate may be left out where the process has one of its own."""
    kind = fields.choice("kind", kinds)
    may_lack_rate = kind in ("markov", "two_level", "trace")
    read_rate = fields.optional_number if may_lack_rate else fields.number
    rate = read_rate("rate", MIN_RATE, MAX_RATE)
    with fields.at("kind"):
        match kind:
            case "uniform":
                return Uniform(), rate
            case "gamma":
                return Gamma(fields.number("shape", *SHAPES)), rate
            case "markov":
                d0, d1 = (fields.matrix(key, -MAX_RATE, MAX_RATE) for key in ("d0", "d1"))
                return MarkovianArrivals(d0, d1), rate
            case "two_level":
                high = fields.number("high", 0, MAX_RATE, above=True)
                low = fields.number("low", 0, high)
                low_seconds = fields.number("low_seconds", 0, MAX_LOAD_SECONDS, above=True)
                high_seconds = fields.number("high_seconds", 0, MAX_LOAD_SECONDS, low_seconds, above=True)
                return TwoLevel(low, high, low_seconds, high_seconds), rate
            case "trace":
                return _trace(fields), rate
            case _:
                return Poisson(), rate


def _trace(fields: Fields) -> RateTrace:
    if fields.has("scale") and fields.has("rate"):
        fields.fail("scale and rate both size the trace; keep one", "scale")
    interpolation = fields.choice("interpolation", ("linear", "hold"), "linear")
    scale = fields.number("scale", 0, 1e9, 1.0, above=True)
    with fields.at("file"):
        return RateTrace.read(_file(fields), "hold" if interpolation == "hold" else "linear", scale)


def _file(fields: Fields) -> str:
    """Relative to the folder of the scenario."""
    return str(fields.document.folder / fields.text("file"))


def _popularity(load: Fields, applications: int) -> Popularity:
    if isinstance(load.table.get("popularity"), list):
        weights = load.numbers("popularity", 0, 1e12)
        if len(weights) != applications:
            load.fail(
                f"popularity has {len(weights)} weights for {applications} applications; give one each", "popularity"
            )
        with load.at("popularity"):
            return Weights(weights)
    if load.choice("popularity", POPULARITIES, "even") == "even":
        return Even()
    return Zipf(load.number("zipf_exponent", 0, 100, 1.0))


def _mix(load: Fields, names: list[str]) -> dict[str, Mix]:
    """[load.mix.NAME]: classes and deadlines that differ between the queries of one application."""
    part = load.part("mix")
    mix: dict[str, Mix] = {}
    for name in part.table if part is not None else ():
        assert part is not None
        _check_application(part, name, name, names)
        fields = part.part(name)
        assert fields is not None
        classes = fields.numbers("class_shares", 0, 1e12) if fields.has("class_shares") else ()
        deadlines_ms = fields.numbers("deadlines_ms", 1e-6, MAX_DEADLINE_MS) if fields.has("deadlines_ms") else ()
        shares = fields.numbers("deadline_shares", 0, 1e12) if fields.has("deadline_shares") else ()
        fields.done()
        with fields.at():
            mix[name] = Mix(classes, tuple(round(deadline_ms * NS_PER_MS) for deadline_ms in deadlines_ms), shares)
    return mix


def _clients(load: Fields, names: list[str]) -> Clients:
    """[[load.client]]: each has its own stream; `count` makes several that are alike."""
    clients: list[Client] = []
    for fields in load.parts("client"):
        application = fields.text("application", names[0] if len(names) == 1 else None)
        _check_application(fields, "application", application, names)
        count = fields.integer("count", 1, MAX_CLIENTS, 1)
        process, rate = _process(fields, tuple(kind for kind in KINDS if kind != "log"))
        deadline_ms = fields.optional_number("deadline_ms", 1e-6, MAX_DEADLINE_MS)
        deadline_ns = None if deadline_ms is None else round(deadline_ms * NS_PER_MS)
        priority = fields.integer("priority", -(2**31), 2**31 - 1, 0)
        fields.done(ALL_KEYS)
        if len(clients) + count > MAX_CLIENTS:
            fields.fail(f"there are more than {MAX_CLIENTS} clients", "count")
        clients += [Client(application, process, rate, deadline_ns, priority)] * count
    if not clients:
        load.fail("client is empty; add a [[load.client]]", "client")
    return Clients(tuple(clients), _mix(load, names))


def _check_application(fields: Fields, key: str, name: str, names: list[str]) -> None:
    if name not in names:
        fields.fail(f"there is no application {shown(name)}; {suggestion(name, names[:20])}", key)
