"""One queue for an application: which variant keeps up."""

from __future__ import annotations

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.parts.central import keeping_up


def test_of_equally_accurate_variants_the_faster_one_keeps_up() -> None:
    profiles = {"slow": (4.0, 9.0), "fast": (1.0, 4.0), "less": (0.5, 2.0)}
    accuracy = {"slow": 0.9, "fast": 0.9, "less": 0.8}
    variants = tuple(
        Variant(name, accuracy[name], (LatencyProfile.linear(*line, 8),)) for name, line in profiles.items()
    )
    for ladder in (variants, variants[::-1]):
        there = Deployment((Application("a", 100 * NS_PER_MS, ladder),), workers(1))
        variant, _ = keeping_up(there, [0, 1, 2], (0,), 20.0)
        assert ladder[variant].name == "fast"
