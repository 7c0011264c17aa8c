"""Applications and their variants: what clients call, and the trained models that can answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod

from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile

# Of an answer by a variant whose accuracy nobody knows: it meets no demand, and a sum with it stays unknown.
UNKNOWN_ACCURACY = -math.inf
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


def check_name(what: str, name: str) -> None:
    """Names are short and plain, so that they can stand in files, metrics and addresses."""
    if not NAME.fullmatch(name):
        raise StrettoError(
            f"{what} {name[:40]!r} must start with a letter or digit and hold at most 128 letters, digits or . _ : -"
        )


def from_fast_to_accurate(figures: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """The ladder of variants, given as (accuracy, latency) by name, on which pictures colour and order them.

    Accuracy decides. Where no variant is beaten by another, that is the order of their latencies as well; and unlike
    latencies it is the same on every kind of worker, at every quantile and after the next profile.
    """
    return tuple(sorted(figures, key=lambda name: (*figures[name], name)))


class Penalty(IntEnum):
    """What a late answer is still worth."""

    STEP = 0
    LINEAR = 1
    SIGMOID = 2


@dataclass(frozen=True, eq=False)
class Variant:
    """One trained model of an application. `profiles` has one entry per kind of worker it can run on.
    `accuracy_by_size`: of queries that were sent at the input size of another variant, where that was measured.
    """

    name: str
    accuracy: float
    profiles: tuple[LatencyProfile, ...]
    memory_bytes: int = 0
    dynamic_memory_bytes: int = 0
    load_ns: int = 0
    recall: tuple[float, ...] = ()
    # Accuracy for queries whose likeliest class is each, as equation 9 has it on average; empty: recall stands for it.
    accuracy_by_class: tuple[float, ...] = ()
    input_size: tuple[int, ...] = ()
    frame_bytes: int = 0  # of one query as a client sends it at this input size; 0: not known
    accuracy_by_size: tuple[tuple[tuple[int, ...], float], ...] = ()
    # False: nobody knows how accurate it is, and nobody is told `accuracy`. Plans count with it all the same: it is the
    # figure of the model before, so that variants keep their order, or 1 where there was none.
    has_accuracy: bool = True

    def __post_init__(self) -> None:
        check_name("variant", self.name)
        if not 0 <= self.accuracy <= 1:
            raise StrettoError(f"accuracy of variant {self.name} is {self.accuracy}; it is a fraction between 0 and 1")
        if any(not 0 <= value <= 1 for value in (*self.recall, *self.accuracy_by_class)):
            raise StrettoError(f"every recall of variant {self.name} is a fraction between 0 and 1")
        if any(not 0 <= value <= 1 for _, value in self.accuracy_by_size):
            raise StrettoError(f"every accuracy by size of variant {self.name} is a fraction between 0 and 1")
        if not self.profiles:
            raise StrettoError(f"variant {self.name} has no latency profile; measure one or give alpha_ms and beta_ms")
        kinds = [profile.kind for profile in self.profiles]
        if len(set(kinds)) != len(kinds):
            raise StrettoError(f"variant {self.name} has two profiles for one kind of worker")
        if min(self.memory_bytes, self.dynamic_memory_bytes, self.load_ns, self.frame_bytes) < 0:
            raise StrettoError(f"memory, load time and frame size of variant {self.name} cannot be negative")

    @property
    def promised_accuracy(self) -> float:
        """What clients may be told of its answers; UNKNOWN_ACCURACY where nobody knows."""
        return self.accuracy if self.has_accuracy else UNKNOWN_ACCURACY

    def profile_on(self, kind: str) -> LatencyProfile | None:
        """The profile for a kind of worker, or None where the variant cannot run."""
        return next((profile for profile in self.profiles if profile.kind == kind), None)

    def accuracy_of(self, sent: Variant) -> float:
        """Of a query that was sent at another variant's input size: as measured; else one that is made larger is
        answered as by the variant of its size, and one that is made smaller as any.
        """
        measured = dict(self.accuracy_by_size).get(sent.input_size)
        if measured is not None:
            return measured
        pixels, sent_pixels = (prod(size) if size else 0 for size in (self.input_size, sent.input_size))
        return min(sent.accuracy, self.accuracy) if sent_pixels < pixels else self.accuracy


@dataclass(frozen=True, eq=False)
class Application:
    """What clients call: a task, its SLO, its variants, and its penalty for lateness.

    `whole_ladder` names all variants that its repository holds, from fast to accurate, where these are a part of them.
    """

    name: str
    slo_ns: int
    variants: tuple[Variant, ...]
    penalty: Penalty = Penalty.STEP
    classes: int = 0
    evidence_accuracy: float | None = None  # of its evidence taken as the answer; None: it is no answer
    whole_ladder: tuple[str, ...] = ()
    class_shares: tuple[float, ...] = ()  # of samples that evidence takes for each class; empty: it was not asked
    has_evidence: bool = False  # of its queries' classes; implied where that is an answer

    def __post_init__(self) -> None:
        check_name("application", self.name)
        if self.slo_ns <= 0:
            raise StrettoError(f"the SLO of application {self.name} must be above zero")
        if not self.variants:
            raise StrettoError(f"application {self.name} has no variant")
        if self.evidence_accuracy is not None and not 0 <= self.evidence_accuracy <= 1:
            raise StrettoError(f"the accuracy of evidence for application {self.name} is a fraction between 0 and 1")
        object.__setattr__(self, "has_evidence", self.has_evidence or self.evidence_accuracy is not None)
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            raise StrettoError(f"application {self.name} has two variants of one name")
        for name in self.whole_ladder:
            check_name("variant", name)

    @property
    def ladder(self) -> tuple[str, ...]:
        """All its variants from fast to accurate, those that are not deployed here too."""
        fastest_ns = {
            variant.name: min(profile.latency_ns(1) for profile in variant.profiles) for variant in self.variants
        }
        here = from_fast_to_accurate({v.name: (v.accuracy, fastest_ns[v.name]) for v in self.variants})
        return tuple(dict.fromkeys((*self.whole_ladder, *here)))
