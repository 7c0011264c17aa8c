"""A scheduler of one sub-cluster serves the applications that a partition gives to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.api.serve_options import ServeOptions
from stretto.cli.roles import of_sub_cluster
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
    assert of_sub_cluster(options, None, None) is options
    shares = [of_sub_cluster(options, file, number).service.share for number in (0, 1)]
    assert [share and share.applications for share in shares] == [("fashion", "activity"), ("mnist",)]


@pytest.mark.parametrize(("number", "said"), [(2, "no applications"), (3, "no applications"), (None, "needs both")])
def test_what_is_no_sub_cluster_is_refused(file: Path, number: int | None, said: str) -> None:
    with pytest.raises(StrettoError, match=said):
        of_sub_cluster(ServeOptions(ServiceOptions("zoo")), file, number)
