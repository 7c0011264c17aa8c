"""Which variant, workers and rates a planner with one variant per application starts from."""

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers
from stretto.planners.parts.rates import rates_of


def variant(name: str, accuracy: float, first_ms: float, kind: str = "default") -> Variant:
    return Variant(name, accuracy, (LatencyProfile.linear(1, first_ms - 1, 32, kind),))


def deployment(*variants: Variant, slo_ms: int = 40) -> Deployment:
    other = Application("other", 40 * NS_PER_MS, (variant("small", 0.5, 5),))
    return Deployment((other, Application("app", slo_ms * NS_PER_MS, variants)), workers(2))


def test_default_is_the_most_accurate_within_half_the_slo() -> None:
    made = deployment(variant("quick", 0.6, 5), variant("edge", 0.8, 20), variant("slow", 0.9, 21))
    assert choose_variants(made) == (0, 2)


def test_without_one_within_half_the_slo_the_most_accurate_within_it() -> None:
    assert choose_variants(deployment(variant("a", 0.6, 25), variant("b", 0.8, 40), variant("c", 0.9, 41))) == (0, 2)


def test_of_equal_accuracy_the_faster() -> None:
    assert choose_variants(deployment(variant("a", 0.6, 15), variant("b", 0.6, 10), variant("c", 0.6, 12))) == (0, 2)


def test_a_named_variant_is_taken_whatever_its_latency() -> None:
    made = deployment(variant("quick", 0.6, 5), variant("slow", 0.9, 90))
    assert choose_variants(made, {"app": "slow"}) == (0, 2)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"nobody": "quick"}, "there are other, app"),
        ({"app": "nothing"}, "has no variant 'nothing'; it has quick, slow"),
    ],
)
def test_unknown_names_are_refused_with_those_that_there_are(named: dict[str, str], message: str) -> None:
    made = deployment(variant("quick", 0.6, 5), variant("slow", 0.9, 90))
    with pytest.raises(StrettoError, match=message):
        choose_variants(made, named)


def test_an_application_that_is_always_late_is_refused() -> None:
    with pytest.raises(StrettoError, match="no variant of application app"):
        choose_variants(deployment(variant("slow", 0.9, 90)))


def test_workers_that_are_too_slow_serve_only_where_no_other_does() -> None:
    both = Variant("v", 0.9, (LatencyProfile.linear(1, 9, 32, "quick"), LatencyProfile.linear(1, 59, 32, "lame")))
    mixed = workers(2, "quick") + workers(2, "lame") + workers(1, "other")
    made = Deployment((Application("app", 40 * NS_PER_MS, (both,)),), mixed)
    assert serving_workers(made, 0) == (0, 1)
    assert [profile.kind for profile in serving_profiles(made, 0)] == ["quick"]
    just = Deployment((Application("app", 10 * NS_PER_MS, (both,)),), mixed)
    assert serving_workers(just, 0) == (0, 1), "one query takes the quick ones all of the SLO"
    tight = Deployment((Application("app", 5 * NS_PER_MS, (both,)),), mixed)
    assert serving_workers(tight, 0) == (0, 1, 2, 3)


def test_a_variant_that_no_worker_runs_is_not_chosen() -> None:
    made = deployment(variant("here", 0.6, 5), variant("elsewhere", 0.9, 5, "tpu"))
    assert choose_variants(made) == (0, 1)
    with pytest.raises(StrettoError, match="none of the workers can run"):
        choose_variants(made, {"app": "elsewhere"})


def test_unknown_rates_are_equal() -> None:
    made = deployment(variant("quick", 0.6, 5))
    np.testing.assert_array_equal(rates_of(View(made), 1.0), [1, 1])
    np.testing.assert_array_equal(rates_of(View(made, expected_rates=(0, 0)), 1.0), [1, 1])
    np.testing.assert_array_equal(rates_of(View(made, expected_rates=(0, 7)), 1.0), [0, 7])
