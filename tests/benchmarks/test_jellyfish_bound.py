"""The bound that Jellyfish's figures are held against is the best mapping there is, by equations (5) and (6)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from stretto.core.bandwidth import constant

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BYTES_PER_S = 1.25e6


@pytest.mark.parametrize(("slo_ms", "fps"), [(75.0, 25.0), (100.0, 15.0), (150.0, 15.0)])
def test_alone_the_largest_model_that_fits(monkeypatch: pytest.MonkeyPatch, slo_ms: float, fps: float) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    ground, network, bound = (import_module(f"jellyfish_{name}") for name in ("ground", "network", "bound"))
    monkeypatch.setattr(network, "trace", lambda name: constant(BYTES_PER_S))
    monkeypatch.setattr(bound, "SECONDS", 6.0)
    fitting = [
        ground.accuracy(index)
        for index, size in enumerate(ground.SIZES)
        if 1.25 * ground.profile_ns(index, 1) / 1e6 + 4 + 1e3 * ground.frame_bytes(size) / BYTES_PER_S <= slo_ms
        and ground.frame_bytes(size) * fps <= 0.95 * BYTES_PER_S
    ]
    setting = network.Setting("synthetic", slo_ms, fps, 1)
    assert bound.most_accurate_mapping((setting, 1)) == pytest.approx(max(fitting))
