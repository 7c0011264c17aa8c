"""Frame clients behind links, against the real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.cli.queries import sample_of
from stretto.client.errors import BadRequest, NotFound
from stretto.client.network import Link
from stretto.client.network.drive import run_frames
from stretto.client.network.spec import FrameLoad, FramesNow
from stretto.core.bandwidth import constant
from stretto.core.errors import StrettoError
from tests.api.serving import Running, repository_of

APPLICATION = "fashion_resolution"
PATIENT_MS = 5_000.0  # an SLO that a busy machine does not break


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    repository = repository_of(tmp_path_factory.mktemp("links"), APPLICATION)
    with Running(repository, only=("px08", "px16", "px24"), planner="jellyfish") as server:
        yield server


def load(running: Running, *links: Link, **options: Any) -> FrameLoad:
    host, port = running.address("http")
    inputs, labels = sample_of(APPLICATION)
    usual = {"labels": labels, "url": f"http://{host}:{port}", "seconds": 1.0, "slo_ms": PATIENT_MS}
    return FrameLoad(APPLICATION, inputs, links, **{**usual, **options})


def test_every_frame_has_one_outcome(running: Running) -> None:
    seen: list[FramesNow] = []
    links = [Link(constant(rate)) for rate in (1e6, 200_000, 40_000)]
    result = run_frames(load(running, *links, fps=12, names=("near", "far", "very far")), seen.append)
    summary = result.summary()
    assert summary["frames"] == len(result) == 36 == sum(summary["outcomes"].values())
    assert [client["link"] for client in summary["clients"]] == ["near", "far", "very far"]
    assert all(client["frames"] == 12 for client in summary["clients"])
    assert summary["outcomes"]["failed"] == 0 and summary["accuracy"] > 0.5
    assert (np.diff(result.made_ns) >= 0).all() and result.sizes == "told" and not result.was_interrupted
    assert seen and {client.name for client in seen[-1].clients} == {"near", "far", "very far"}
    assert seen[-1].clients[0].given == 1e6 and seen[-1].clients[0].edge > 0


@pytest.mark.parametrize("rate", [20_000.0, 50_000.0])
def test_the_client_s_estimate_is_the_proxy_s_rate(running: Running, rate: float) -> None:
    """The median over three runs of a median over frames: others may take the processor away."""
    runs = [run_frames(load(running, Link(constant(rate)), fps=6, edge=28, seconds=1.5)) for _ in range(3)]
    ratios = [result.summary()["bandwidth_measured_over_given"] for result in runs]
    assert 0.9 < float(np.median(ratios)) < 1.1, ratios


def test_who_has_less_bandwidth_sends_smaller_frames(running: Running) -> None:
    links = [Link(constant(rate)) for rate in (2e6, 15_000)]
    result = run_frames(load(running, *links, fps=8, seconds=2.5, slo_ms=200))
    near, far = (result.summary()["clients"][number] for number in (0, 1))
    assert far["mean_edge"] < near["mean_edge"] > 16, (near, far)


def test_a_fixed_size_is_sent_whatever_the_network(running: Running) -> None:
    result = run_frames(load(running, Link(constant(1e6)), fps=10, edge=16))
    assert set(result.edge.tolist()) == {16} and result.sizes == "16"


def test_what_cannot_be_is_said_before_a_frame_is_made(running: Running) -> None:
    usual = load(running, Link(constant(1e6)))
    with pytest.raises(BadRequest, match="takes frames of 8x8"):
        run_frames(replace(usual, edge=9))
    with pytest.raises(NotFound):
        run_frames(replace(usual, application="nothing"))
    with pytest.raises(StrettoError, match="http://"):
        run_frames(replace(usual, url=usual.url.replace("http", "https")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0.0}, "the frame rate is 0"),
        ({"fps": 5000.0}, "at most 1,000"),
        ({"seconds": 1e6}, "the duration"),
        ({"seconds": 80_000.0, "fps": 500.0}, "2,000,000 frames"),
        ({"links": ()}, "from 1 to 4096 clients"),
        ({"names": ("a", "b")}, "every link a name"),
        ({"edge": 0}, "from 1 to 4096 pixels"),
        ({"inputs": np.zeros((3, 4))}, "frames are images"),
        ({"labels": np.zeros(1, np.int64)}, "one label for each"),
        ({"seed": -1}, "the seed"),
        ({"application": ""}, "name the application"),
    ],
)
def test_bounds(options: dict[str, Any], message: str) -> None:
    usual = FrameLoad("a", np.zeros((2, 1, 4, 4)), (Link(constant(1e6)),))
    with pytest.raises(StrettoError, match=message):
        replace(usual, **options)


def test_a_frame_counts_with_its_headers_and_plans_are_timed(running: Running) -> None:
    """The ladder's frame sizes are those of whole requests, so what clients send is about what is expected of them."""
    run_frames(load(running, Link(constant(1e6)), fps=10, edge=24))
    (client,) = running.call(lambda: [each for each in running.service.clients.all() if each.rate > 0][:1])
    assert 0.9 < client.frame_ratio < 1.1
    assert sum(running.service.engine.meters.planning.counts) > 0
