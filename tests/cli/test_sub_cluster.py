"""A scheduler of one sub-cluster serves the applications that a partition gives to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.api.serve_options import ServeOptions
from stretto.cli.roles import of_partition
from stretto.core.errors import StrettoError
from stretto.core.partition import Partition, partition_text
from stretto.live.options import ServiceOptions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "parts.json"
    path.write_text(partition_text(Partition({"fashion": 0, "mnist": 1, "activity": 0}, 3)))
    return path


def test_only_its_applications(file: Path) -> None:
    options = ServeOptions(ServiceOptions("zoo"))
    assert of_partition(options, None) is options
    shares = [of_partition(options, file, number).service.share for number in (0, 1)]
    assert [share and share.applications for share in shares] == [("fashion", "activity"), ("mnist",)]


def test_a_cluster_of_sub_clusters(tmp_path: Path) -> None:
    """Its scheduler has what they have together, and its planner splits it again."""
    file = tmp_path / "parts.json"
    file.write_text(partition_text(Partition({"fashion": 0, "mnist": 1, "activity": 5}, 6, 2)))
    asked = ServeOptions(ServiceOptions("zoo", planner="symphony", planner_options={"epoch_s": 9}))
    services = [of_partition(asked, file, cluster=number).service for number in (0, 1)]
    shares = [service.share for service in services]
    assert [share and share.applications for share in shares] == [("fashion", "mnist"), ("activity",)]
    assert all(service.planner_options == {"sub_clusters": 3, "epoch_s": 9} for service in services)
    with pytest.raises(StrettoError, match="judged does not: take one of symphony"):
        of_partition(ServeOptions(ServiceOptions("zoo")), file, cluster=0)
    for numbers in ((None, None), (0, 0)):
        with pytest.raises(StrettoError, match="either --sub-cluster or --cluster"):
            of_partition(asked, file, *numbers)
    with pytest.raises(StrettoError, match="cluster 2 of 2 has no applications"):
        of_partition(asked, file, cluster=2)


@pytest.mark.parametrize(
    ("number", "said"), [(2, "no applications"), (3, "no applications"), (None, "either --sub-cluster or --cluster")]
)
def test_what_is_no_sub_cluster_is_refused(file: Path, number: int | None, said: str) -> None:
    with pytest.raises(StrettoError, match=said):
        of_partition(ServeOptions(ServiceOptions("zoo")), file, number)
