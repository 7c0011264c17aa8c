"""What `stretto plan` and `stretto capacity` are about: one application on equal workers, and a planner's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.core.application import Application
    from stretto.core.deployment import Deployment
    from stretto.core.verdict import OptionValue
    from stretto.planners.promise import PolicyPlanner
    from stretto.sim.arrivals import Load

POLICY_PLANNERS = ("judged", "shared_queue", "ramsis")  # the first that knows the options goes by default
JUDGED = "judged"  # has no policies of its own, but a promise
# Whose expectations bound what comes, unless queries go to the shortest queue; those of others come from a trial.
BOUNDS = ("ramsis",)
MAX_SLO_MS = 3_600_000.0
MAX_LOAD = 1e9
DEFAULT_KIND = "default"

App = Annotated[
    str, typer.Argument(metavar="APP", help="zoo:APP, the folder of an application, or a CSV of measured latencies.")
]
SloMs = Annotated[float | None, typer.Option(metavar="MS", help="The SLO; else the application's own.")]
LoadRate = Annotated[float, typer.Option("--load", metavar="RATE", help="Queries/s over all workers.")]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Machine kind whose profiles decide.")]
PlannerName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"{' or '.join(POLICY_PLANNERS)}; else the first that fits the options."),
]
SlackSteps = Annotated[
    int | None, typer.Option(metavar="N", help="Slacks told apart; 0: by the variants' latencies (ramsis).")
]
MaxQueue = Annotated[int | None, typer.Option(metavar="N", help="The longest queue of a worker told apart (ramsis).")]
Batching = Annotated[str | None, typer.Option(metavar="HOW", help="maximal (all that wait) or variable (ramsis).")]
Balancing = Annotated[str | None, typer.Option(metavar="HOW", help="round_robin or shortest queue (ramsis).")]
LateQueries = Annotated[str | None, typer.Option("--late", metavar="HOW", help="serve or drop (ramsis).")]
Reward = Annotated[str | None, typer.Option(metavar="FOR", help="query or decision (ramsis).")]
Pruning = Annotated[
    str | None, typer.Option(metavar="HOW", help="Keep variants best at one_query or at some of every_batch (ramsis).")
]
Arrivals = Annotated[str | None, typer.Option(metavar="LAW", help="poisson or gamma:SHAPE (bursty, SHAPE below 1).")]

# Words on the command line: which option of the planner they set. The first word is the planner's own default.
WORDS: dict[str, tuple[str, tuple[str, str]]] = {
    "batching": ("variable", ("maximal", "variable")),
    "balancing": ("shortest", ("round_robin", "shortest")),
    "late": ("drop", ("serve", "drop")),
    "reward": ("per_decision", ("query", "decision")),
    "pruning": ("every_batch", ("one_query", "every_batch")),
}


@dataclass(frozen=True, eq=False)
class Subject:
    """One application on workers of one kind."""

    application: Application
    kind: str
    warnings: tuple[str, ...] = ()
    is_served: bool = False  # by a server, which decides by mean latencies; published results go by p95

    @property
    def has_accuracy(self) -> bool:
        """It is known of all variants; else figures that rest on it say nothing."""
        return all(variant.has_accuracy for variant in self.application.variants)

    def check_accuracy(self) -> None:
        """StrettoError where nobody knows how accurate answers would be: no number of workers can be named for that."""
        unknown = [variant.name for variant in self.application.variants if not variant.has_accuracy]
        if unknown:
            raise StrettoError(
                f"the accuracy of {self.application.name}/{unknown[0]} is not known, so no number of workers can be "
                "promised for one; measure it: stretto profile REPO --data FILE.npz"
            )

    def deployment(self, workers: int) -> Deployment:
        from stretto.core.deployment import Deployment
        from stretto.core.profile import Quantile
        from stretto.core.worker import workers as equal_workers

        quantile = Quantile.MEAN if self.is_served else Quantile.P95
        return Deployment((self.application,), equal_workers(workers, self.kind), quantile)

    def on(self, fleet: Mapping[str, int]) -> Deployment:
        """On so many workers of each kind."""
        from stretto.core.worker import workers as equal_workers

        slots = tuple(worker for kind, count in fleet.items() if count for worker in equal_workers(count, kind))
        return replace(self.deployment(1), workers=slots)


@dataclass(frozen=True)
class Choice:
    """A planner that makes policies, the options given for it, and the arrivals that they are for."""

    name: str
    options: dict[str, OptionValue]
    gamma_shape: float = 1.0

    @property
    def words(self) -> tuple[str, str]:
        """Before an expected accuracy and an expected share of violations."""
        is_bound = self.name in BOUNDS and not self.options.get("shortest")
        return ("at least ", "at most ") if is_bound else ("", "")

    @property
    def columns(self) -> list[str]:
        """The same as heads of columns."""
        pairs = zip(("accuracy", "not on time"), self.words, strict=True)
        return [f"{what}, {word.strip()}" if word else what for what, word in pairs]

    @property
    def is_judged(self) -> bool:
        return self.name == JUDGED

    def make(self) -> PolicyPlanner:
        from stretto.planners.ports import Ports
        from stretto.planners.promise import PolicyPlanner
        from stretto.planners.registry import planner_entry
        from stretto.sim.trial import simulated_trial

        entry = planner_entry(self.name)
        has_prior = any(option.name == "prior" for option in entry.options)
        options = {"prior": 0, **self.options} if has_prior else self.options  # the load is known
        planner = entry.make(options, ports=Ports(trial=simulated_trial))
        assert isinstance(planner, PolicyPlanner), "only planners with policies are offered"
        return planner

    def source(self, load: float) -> Load:
        """Arrivals of that law, to simulate."""
        from stretto.sim.arrivals import Load
        from stretto.sim.processes import Gamma, Poisson

        return Load(Poisson() if self.gamma_shape == 1 else Gamma(self.gamma_shape), load)


def read_subject(reference: str, slo_ms: float | None, kind: str | None) -> Subject:
    """From a repository (zoo:APP or a folder) or a CSV."""
    from stretto.core.profile import NS_PER_MS

    if slo_ms is not None and not 0 < slo_ms <= MAX_SLO_MS:
        raise StrettoError(f"--slo-ms is {slo_ms:g}; it must be above 0 and at most {MAX_SLO_MS:g}")
    if reference.lower().endswith(".csv"):
        return _measured(Path(reference), slo_ms, kind)
    from stretto.repository.read import read_repository

    repository = read_repository(reference)
    readable = [files.name for files in repository.applications]
    names = [*readable, *(each.name for each in repository.unreadable)]
    if len(names) != 1:
        joint = ":" if reference == "zoo" else "/"
        raise StrettoError(
            f"{reference} has {len(names)} applications ({', '.join(names[:20])}); name one of them, as"
            f" {reference.rstrip('/')}{joint}{readable[0]}"
        )
    deployment, warnings = repository.deployment(1, kind=kind)
    application = deployment.applications[0]
    if slo_ms is not None:
        application = replace(application, slo_ns=max(1, round(slo_ms * NS_PER_MS)))
    return Subject(application, deployment.kinds[0], warnings, is_served=True)


def _measured(file: Path, slo_ms: float | None, kind: str | None) -> Subject:
    from stretto.core.application import Application
    from stretto.core.profile import NS_PER_MS
    from stretto.repository.measurements import read_measurements

    if slo_ms is None:
        raise StrettoError(f"{file.name} states no SLO; give one, as --slo-ms 150")
    used = DEFAULT_KIND if kind is None else kind
    variants = read_measurements(file, used)
    letters = (letter if letter.isascii() and (letter.isalnum() or letter in "_.") else "-" for letter in file.stem)
    name = "".join(letters).strip("-_.")
    return Subject(Application(name or "application", max(1, round(slo_ms * NS_PER_MS)), variants), used)


def read_choice(
    planner: str | None,
    arrivals: str | None,
    numbers: dict[str, int | None],
    words: dict[str, str | None],
    *,
    with_policies: bool = False,
) -> Choice:
    """`numbers` are options by their own name, `words` those of WORDS; what is None keeps the planner's default.
    `with_policies`: only a planner will do whose policies can be stored.
    """
    from stretto.planners.registry import NAMES, planner_entry

    options: dict[str, OptionValue] = {what: value for what, value in numbers.items() if value is not None}
    for what, word in words.items():
        if word is None:
            continue
        option, (usual, other) = WORDS[what]
        if word not in (usual, other):
            raise StrettoError(f"--{what} is {word[:40]!r}; it is {usual} or {other}")
        if word == other:
            options[option] = True
    shape = _gamma_shape(arrivals)
    if shape != 1:
        options["gamma_shape"] = shape
    offered = [name for name in POLICY_PLANNERS if name in NAMES and not (with_policies and name == JUDGED)]
    if planner is not None and planner not in offered:
        raise StrettoError(f"--planner {planner[:40]} makes no policies with a promise; take {' or '.join(offered)}")
    if planner == JUDGED and options.keys() - {"gamma_shape"}:
        raise StrettoError("--planner judged chooses the options of others by trial; leave them out, or the planner")
    # Without a name, the first that knows the options given.
    known = {name: {option.name for option in planner_entry(name).options} for name in offered}
    known[JUDGED] = {"gamma_shape"}
    fitting = [name for name in offered if options.keys() <= known[name]]
    return Choice(planner or (fitting or offered)[0], options, shape)


def _gamma_shape(arrivals: str | None) -> float:
    if arrivals is None or arrivals == "poisson":
        return 1.0
    from stretto.planners.parts.laws import Gamma

    kind, _, shape = arrivals.partition(":")
    try:
        number = float(shape)
    except ValueError:
        number = None
    if kind != "gamma" or number is None:
        raise StrettoError(f"--arrivals is {arrivals[:40]!r}; write poisson, or gamma:0.5 for bursts")
    return Gamma(number).shape


def at_most(share: float) -> str:
    """A share that may be tiny, rounded up to what can be seen."""
    return f"{max(share, 1e-5) if share > 0 else 0.0:.3%}"


def check_load(load: float) -> None:
    if not 0 < load <= MAX_LOAD:
        raise StrettoError(f"--load is {load:g}; it must be above 0 and at most {MAX_LOAD:g} queries/s")


def check_workers(workers: int) -> None:
    from stretto.planners.parts.task import MAX_WORKERS

    if not 1 <= workers <= MAX_WORKERS:
        raise StrettoError(f"--workers is {workers}; it must be from 1 to {MAX_WORKERS}")
