"""Workers that run only the variants that they are named for."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.instances import check_names, is_named, kind_of_instances, with_instances
from stretto.core.profile import LatencyProfile
from stretto.core.worker import Worker, workers

ON_A = LatencyProfile.linear(1.0, 1.0, 8, "a")
ON_B = LatencyProfile.linear(2.0, 1.0, 8, "b")


def machine() -> Deployment:
    first = Application("first", 100, (Variant("small", 0.5, (ON_A, ON_B)), Variant("large", 0.9, (ON_A, ON_B))))
    second = Application("second", 100, (Variant("small", 0.7, (ON_A,)), Variant("other", 0.8, (ON_A,))))
    return Deployment((first, second), (*workers(3, "a"), Worker("b-0", "b")))


def runs(deployment: Deployment) -> list[set[str]]:
    """What each worker may run."""
    return [
        {
            deployment.variant_label(number)
            for number, variant in enumerate(deployment.variants)
            if variant.profile_on(worker.kind) is not None
        }
        for worker in deployment.workers
    ]


def test_each_worker_runs_the_variants_of_its_names_and_no_other() -> None:
    made = with_instances(machine(), [("small",), ("first/large", "second/*"), (), ("large",)])
    everything = {"first/small", "first/large", "second/small", "second/other"}
    assert runs(made) == [
        {"first/small", "second/small"},
        {"first/large", "second/small", "second/other"},
        everything,
        {"first/large"},
    ]
    assert [worker.name for worker in made.workers] == [worker.name for worker in machine().workers]
    assert made.kinds == ("a:small", "a:first.large:second.all", "a", "b:large")
    assert made.profile(0, "a:small").latency_ns(4) == ON_A.latency_ns(4)
    assert made.profile(1, "b:large").latency_ns(4) == ON_B.latency_ns(4)


def test_workers_with_the_same_names_are_alike_and_nobody_is_named_means_no_change() -> None:
    made = with_instances(machine(), [("small",), ("small",), ("small", "large", "other"), ()])
    assert made.workers[0].kind == made.workers[1].kind != made.workers[2].kind
    before = machine()
    assert with_instances(before, [()] * 4) is before


def test_a_variant_that_no_worker_runs_is_left_out_and_an_application_without_one_is_refused() -> None:
    names = [("small", "second/other")] * 4
    made = with_instances(machine(), names)
    assert [variant.name for variant in made.variants] == ["small", "small", "other"]
    with pytest.raises(StrettoError, match="no worker runs a variant of application second; name one of small, other"):
        with_instances(machine(), [("first/*",)] * 4)


def test_names_and_kinds() -> None:
    assert is_named(("x", "first/*"), "first", "small") and not is_named(("first/*",), "second", "small")
    check_names(("small", "first/large"), ("first/small", "first/large"))
    with pytest.raises(StrettoError, match="there is no variant 'smal'; there are first/small, first/large"):
        check_names(("small", "smal"), ("first/small", "first/large"))
    assert kind_of_instances("cpu", ()) == "cpu"
    kinds = {kind_of_instances("cpu", tuple(f"a-long-name-{number}" for number in range(most))) for most in (20, 21)}
    assert len(kinds) == 2 and all(len(kind) <= 128 for kind in kinds)
