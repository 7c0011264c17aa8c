"""The accuracy-latency Pareto front: the variants that no other variant beats in both."""

from __future__ import annotations

from collections.abc import Mapping


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the (accuracy, latency) points that no other is at least as accurate and as fast as, fastest first.

    Of equal points the first one stays.
    """
    front: list[str] = []
    best = float("-inf")
    for name, (accuracy, _) in sorted(points.items(), key=lambda item: (item[1][1], -item[1][0])):
        if accuracy > best:
            front.append(name)
            best = accuracy
    return front
