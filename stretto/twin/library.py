"""A library of verdicts over loads, for one deployment: what it is for, what it was judged under, and what was found.

It holds for the applications, variants, accuracies, latencies and kinds of workers that it was judged for, and refuses
anything else with what differs. Another number of the same workers is taken by load per worker: the candidate that is
best for a load of each worker is a good one to start with, though its promise was made for more or fewer of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from statistics import median

from stretto.core.application import Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.fleet import Fleet
from stretto.core.verdict import Verdict
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.planners.judged.ledger import LEAST_RATE, RUNG, RUNG_OF_SEVERAL

MOST_VERDICTS = 256
ANEW = "judge anew with stretto tune"


@dataclass(frozen=True)
class VariantMark:
    """A variant as verdicts know it: `latencies` are digests of its profile, by kind of worker."""

    name: str
    accuracy: float
    latencies: Mapping[str, str]

    @staticmethod
    def of(variant: Variant, kinds: Sequence[str]) -> VariantMark:
        profiles = {kind: profile for kind in kinds if (profile := variant.profile_on(kind)) is not None}
        digests = {
            kind: hashlib.sha256(profile.table_ns.astype("<i8").tobytes()).hexdigest()[:12]
            for kind, profile in profiles.items()
        }
        return VariantMark(variant.name, round(variant.accuracy, 6), digests)


@dataclass(frozen=True)
class ApplicationMark:
    name: str
    slo_ms: float
    variants: tuple[VariantMark, ...]


@dataclass(frozen=True)
class Scope:
    """What verdicts are for: enough to tell a deployment from any other one."""

    applications: tuple[ApplicationMark, ...]
    workers: Mapping[str, int]  # by kind
    quantile: str
    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # by kind, where it is limited

    @staticmethod
    def of(deployment: Deployment) -> Scope:
        return Scope(
            tuple(
                ApplicationMark(
                    application.name,
                    round(application.slo_ns / 1e6, 6),
                    tuple(VariantMark.of(variant, deployment.kinds) for variant in application.variants),
                )
                for application in deployment.applications
            ),
            Fleet(deployment.workers).counts(),
            deployment.quantile.name.lower(),
            {w.kind: w.memory_bytes for w in deployment.workers if w.memory_bytes < UNLIMITED_MEMORY},
        )

    def digest(self) -> str:
        """Of all of it, for the name of a file."""
        text = json.dumps(self, default=lambda value: value.__dict__, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def workers_here(self, here: Scope, *, partly: bool = False) -> float:
        """How many workers there are here for each that was judged with. StrettoError where verdicts do not hold here.

        `partly`: those here may have further applications.
        """
        theirs = {application.name: application for application in self.applications}
        ours = {application.name: application for application in here.applications}
        if not (theirs.keys() <= ours.keys() if partly else theirs.keys() == ours.keys()):
            raise _not_for(f"application {', '.join(theirs)}", ", ".join(ours))
        if self.quantile != here.quantile:
            raise _not_for(f"latencies at {self.quantile}", f"at {here.quantile}")
        ratios = {here.workers.get(kind, 0) / count for kind, count in self.workers.items()}
        if self.workers.keys() != here.workers.keys() or len(ratios) != 1:
            raise _not_for(f"workers {_counts(self.workers)}", _counts(here.workers))
        if self.memory_bytes != here.memory_bytes:
            raise _not_for("workers with other memory", "these")
        for name, application in theirs.items():
            _check_application(application, ours[name])
        return ratios.pop()


def _not_for(theirs: str, ours: str) -> StrettoError:
    return StrettoError(f"these plans were judged for {theirs}, not {ours}; {ANEW}")


def _check_application(theirs: ApplicationMark, ours: ApplicationMark) -> None:
    if theirs.slo_ms != ours.slo_ms:
        raise _not_for(f"an SLO of {theirs.slo_ms:g} ms of {theirs.name}", f"{ours.slo_ms:g} ms")
    known, present = ({variant.name: variant for variant in side.variants} for side in (theirs, ours))
    if known.keys() != present.keys():
        raise _not_for(f"the variants {', '.join(known)} of {theirs.name}", ", ".join(present))
    for name, variant in known.items():
        if variant.accuracy != present[name].accuracy:
            raise _not_for(
                f"an accuracy of {variant.accuracy:g} of {theirs.name}/{name}", f"{present[name].accuracy:g}"
            )
        if variant.latencies != present[name].latencies:
            raise _not_for(f"other latencies of {theirs.name}/{name}", "those that its profile has now")


def _counts(workers: Mapping[str, int]) -> str:
    return " + ".join(f"{count} × {kind}" for kind, count in workers.items())


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the figures of the setting that it was judged under; without any, nothing had been measured."""

    verdict: Verdict
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """`conditions` says in a few words what was judged under. Rates and ratios of verdicts go in the scope's order."""

    scope: Scope
    judgements: tuple[Judgement, ...] = ()
    conditions: str = ""
    name: str = "plans"  # of its file, for people

    def judgements_for(self, deployment: Deployment, *, partly: bool = False) -> tuple[Judgement, ...]:
        """With rates of this deployment, by load per worker; StrettoError with the reason where none holds there."""
        try:
            ratio = self.scope.workers_here(Scope.of(deployment), partly=partly)
        except StrettoError as error:
            raise StrettoError(f"{self.name}: {error}") from None
        places = {application.name: place for place, application in enumerate(self.scope.applications)}
        order = [places.get(application.name) for application in deployment.applications]
        return tuple(
            Judgement(
                replace(
                    judgement.verdict,
                    rates=tuple(0.0 if place is None else judgement.verdict.rates[place] * ratio for place in order),
                    ratios=self._ratios_for(deployment, judgement.verdict.ratios),
                ),
                judgement.figures if ratio == 1 and None not in order else {},
            )
            for judgement in self.judgements
        )

    def left_with(self, names: Collection[str]) -> Library:
        """Without the applications that are not of these, and without verdicts for loads of any of them."""
        stay = [application.name in names for application in self.scope.applications]
        rows = [is_left for is_left, mark in zip(stay, self.scope.applications, strict=True) for _ in mark.variants]

        def is_of_these(rates: Sequence[float]) -> bool:
            called = [is_left for rate, is_left in zip(rates, stay, strict=True) if rate > LEAST_RATE]
            return bool(called) and all(called)

        def left(verdict: Verdict) -> Verdict:
            return replace(
                verdict,
                rates=tuple(compress(verdict.rates, stay)),
                ratios=tuple(compress(verdict.ratios, rows)) if len(verdict.ratios) == len(rows) else (),
                candidate=verdict.candidate.left_with(names),
                runner_up=verdict.runner_up.left_with(names),
            )

        return replace(
            self,
            scope=replace(self.scope, applications=tuple(compress(self.scope.applications, stay))),
            judgements=tuple(
                replace(each, verdict=left(each.verdict)) for each in self.judgements if is_of_these(each.verdict.rates)
            ),
        )

    def _ratios_for(
        self, deployment: Deployment, ratios: tuple[tuple[float, ...], ...]
    ) -> tuple[tuple[float, ...], ...]:
        """In the deployment's order of variants and kinds; a variant that nothing is known of has its kind's middle."""
        labels = [f"{mark.name}/{variant.name}" for mark in self.scope.applications for variant in mark.variants]
        kinds = list(self.scope.workers)
        if len(ratios) != len(labels) or any(len(row) != len(kinds) for row in ratios):
            return ratios  # of nothing that is known here; nobody plans with them
        by_name = {
            (label, kind): value
            for label, row in zip(labels, ratios, strict=True)
            for kind, value in zip(kinds, row, strict=True)
        }
        middle = {kind: median(row[place] for row in ratios) for place, kind in enumerate(kinds)}
        wanted = [deployment.variant_label(number) for number in range(len(deployment.variants))]
        return tuple(tuple(by_name.get((label, kind), middle[kind]) for kind in deployment.kinds) for label in wanted)

    def with_judgement(self, judgement: Judgement) -> Library:
        """In place of an earlier one for about the same load. The oldest gives way where there are too many."""
        rungs = rungs_of(judgement.verdict.rates)
        others = [other for other in self.judgements if rungs_of(other.verdict.rates) != rungs]
        return replace(self, judgements=(*others, judgement)[-MOST_VERDICTS:])

    def after(self, older: Sequence[Judgement]) -> Library:
        """With these for loads that it says nothing of."""
        known = {rungs_of(judgement.verdict.rates) for judgement in self.judgements}
        more = {rungs: each for each in older if (rungs := rungs_of(each.verdict.rates)) not in known}
        return replace(self, judgements=(*more.values(), *self.judgements)[-MOST_VERDICTS:])


def rungs_of(rates: Sequence[float]) -> tuple[int, ...]:
    """The loads that the planner tells apart, as it numbers them."""
    step = math.log(RUNG_OF_SEVERAL if len(rates) > 1 else RUNG)
    return tuple(round(math.log(max(rate, LEAST_RATE)) / step) for rate in rates)
