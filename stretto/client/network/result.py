"""What became of frames that clients sent over their links: arrays with one entry per frame, and their summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.frame_stats import FrameOutcome
from stretto.client.load.result import percentiles_ms
from stretto.client.network.link import Link

NS_PER_S = 1_000_000_000
LOOK_NS = NS_PER_S  # sizes are compared with the bandwidth of the second before the frame

OUTCOMES = tuple(FrameOutcome)  # answers first

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FrameResult:
    """Frames in the order in which they were made; every one has an outcome.

    Times count from the start of the links' traces. `latency_ns` is from when a frame was made to its answer or
    refusal. `edge` is the height in pixels at which it was sent, -1 where it never was. `bandwidth` is the client's
    own measurement when it ended, in bytes/s over the last second, and `given` what the link's trace had in that
    second; NaN where nothing was measured. `outcome` is a place in OUTCOMES. `correct` is 1 or 0, and -1 without an
    answer or a label.
    """

    application: str
    slo_ns: int
    seconds: float
    sizes: str  # what the clients sent: "told", or the fixed edge
    links: tuple[Link, ...]
    names: tuple[str, ...]  # of the links
    variants: tuple[str, ...]  # of the application's ladder first, from fast to accurate, also those not served
    refusals: dict[str, int]  # frames that the server refused, by its reason
    is_labelled: bool
    client: NDArray[np.int16]
    made_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    edge: NDArray[np.int32]
    sent_bytes: NDArray[np.int64]
    bandwidth: NDArray[np.float64]
    given: NDArray[np.float64]
    variant: NDArray[np.int16]
    correct: NDArray[np.int8]
    was_interrupted: bool = False
    arrived: int = 0  # frames that the server had, as it acknowledged them; others were given up on their way

    def __len__(self) -> int:
        return len(self.outcome)

    @property
    def is_on_time(self) -> Mask:
        return self.outcome == OUTCOMES.index(FrameOutcome.ON_TIME)

    @property
    def is_answer(self) -> Mask:
        return self.outcome <= OUTCOMES.index(FrameOutcome.LATE)

    @property
    def is_correct_on_time(self) -> Mask:
        return self.is_on_time & (self.correct > 0)

    def summary(self) -> dict[str, Any]:
        """Plain numbers, of all clients and of each. Shares are of all frames; a miss is one not answered on time."""
        everybody = np.ones(len(self), bool)
        return {
            "application": self.application,
            "sizes": self.sizes,
            "seconds": self.seconds,
            "slo_ms": self.slo_ns / 1e6,
            **self._figures(everybody),
            "outcomes": {
                outcome.value: int(count)
                for outcome, count in zip(OUTCOMES, np.bincount(self.outcome, minlength=len(OUTCOMES)), strict=True)
            },
            "refusals": self.refusals,
            "size_follows_bandwidth": self.pooled_correlation(),
            "clients": [
                {
                    "link": name,
                    **self._figures(self.client == number),
                    "size_follows_bandwidth": self.correlation(number),
                }
                for number, name in enumerate(self.names)
            ],
            "was_interrupted": self.was_interrupted,
        }

    def _figures(self, among: Mask) -> dict[str, Any]:
        total = int(among.sum())
        answers = among & self.is_answer
        checked = answers & (self.correct >= 0)
        measured = among & np.isfinite(self.bandwidth) & np.isfinite(self.given)
        ratio = self.bandwidth[measured] / self.given[measured]
        sent = self.edge[among & (self.edge > 0)]
        edges, counts = np.unique(sent, return_counts=True)
        by_variant = np.bincount(self.variant[answers], minlength=len(self.variants))
        return {
            "frames": total,
            "miss_rate": 1 - int((among & self.is_on_time).sum()) / total if total else None,
            "accuracy": float(np.mean(self.correct[checked])) if checked.any() else None,
            "correct_on_time_share": (
                int((among & self.is_correct_on_time).sum()) / total if total and self.is_labelled else None
            ),
            "latency_ms": percentiles_ms(self.latency_ns[answers]),
            "mean_edge": float(sent.mean()) if len(sent) else None,
            "edges": {str(edge): int(count) / len(sent) for edge, count in zip(edges, counts, strict=True)},
            "variants": {
                name: int(count) / int(answers.sum())
                for name, count in zip(self.variants, by_variant, strict=True)
                if count
            },
            "sent_bytes": int(self.sent_bytes[among].sum()),
            "bandwidth_measured_over_given": float(np.median(ratio)) if len(ratio) else None,
        }

    def bandwidth_before(self, number: int) -> NDArray[np.float64]:
        """Of each frame of a client: the link's mean bandwidth in the second before it was made, bytes/s."""
        up = self.links[number].up
        moments_ns = self.made_ns[self.client == number].tolist()
        return np.array([up.mean_over(max(0, made_ns - LOOK_NS), max(1, made_ns)) for made_ns in moments_ns])

    def pooled_correlation(self) -> float | None:
        """The same over the frames of all clients together: who has less bandwidth, or has it now, sends smaller."""
        edges = [self.edge[self.client == number] for number in range(len(self.links))]
        bandwidths = [self.bandwidth_before(number) for number in range(len(self.links))]
        all_edges, all_bandwidths = np.concatenate(edges).astype(np.float64), np.concatenate(bandwidths)
        return rank_correlation(all_edges[all_edges > 0], all_bandwidths[all_edges > 0])

    def correlation(self, number: int) -> float | None:
        """Spearman's rank correlation of the sizes that a client sent with the bandwidth of the second before; None
        where one of them never changed.
        """
        of_client = self.client == number
        edges, bandwidths = self.edge[of_client].astype(np.float64), self.bandwidth_before(number)
        return rank_correlation(edges[edges > 0], bandwidths[edges > 0])


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Spearman's, ties sharing their mean rank; None where one of them never changes."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
