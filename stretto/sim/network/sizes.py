"""The sizes of an application's frames: how many bytes each has, and which one a client takes.

Sizes are known by the variant whose input they are. Accuracy goes by what was measured of frames of that size on the
variant that ran, else by the smaller of the two sizes (`Variant.accuracy_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.network.clients import Adaptation, NetworkClient


@dataclass(frozen=True, eq=False)
class Sizes:
    """`variants` by rising bytes of a frame; several may share a size."""

    variants: tuple[int, ...]  # numbers in the deployment
    names: tuple[str, ...]
    frame_bytes: tuple[int, ...]

    @staticmethod
    def of(deployment: Deployment, application: int) -> Sizes:
        """Of those variants whose bytes are known."""
        known = [number for number in deployment.variants_of(application) if deployment.variants[number].frame_bytes]
        if not known:
            name = deployment.applications[application].name
            raise StrettoError(
                f"no variant of application {name} says frame_bytes, so nothing can be sent over a network"
            )
        known.sort(key=lambda number: (deployment.variants[number].frame_bytes, number))
        variants = [deployment.variants[number] for number in known]
        return Sizes(tuple(known), tuple(each.name for each in variants), tuple(each.frame_bytes for each in variants))

    def place_of(self, name: str) -> int:
        """Among the sizes; the largest where no name is given."""
        if not name:
            return len(self.names) - 1
        if name not in self.names:
            raise StrettoError(f"no variant {name} says frame_bytes; there are {', '.join(self.names[:20])}")
        return self.names.index(name)

    def largest_within(self, most: int, frame_bytes: float) -> int:
        """The largest up to place `most` of so many bytes at most; the smallest where none is."""
        place = most
        while place > 0 and self.frame_bytes[place] > frame_bytes:
            place -= 1
        return place


def size_by_network(spec: NetworkClient, sizes: Sizes, largest: int, slo_ns: int, bytes_per_s: float | None) -> int:
    """The place of the size that a client sends which does not heed what it is told. One that has measured nothing yet
    begins with the smallest, but a fixed one does not.
    """
    if spec.sending.adaptation is Adaptation.FIXED:
        return largest
    if bytes_per_s is None:
        return 0
    within_s = 1.0 / spec.fps
    if spec.sending.adaptation is Adaptation.SLO:
        for_network_ns = slo_ns * (1 - spec.sending.compute_share) - spec.delay_ns - spec.back_ns
        within_s = min(within_s, for_network_ns / NS_PER_S)
    return sizes.largest_within(largest, within_s * bytes_per_s / spec.frame_ratio)


def answered_accuracy(deployment: Deployment, sent: Sequence[int], ran: Sequence[int]) -> NDArray[np.float64]:
    """Of frames sent at the size of one variant and run on another, by their numbers."""
    variants, count = deployment.variants, len(deployment.variants)
    pairs, of_pair = np.unique(np.asarray(sent, np.int64) * count + np.asarray(ran, np.int64), return_inverse=True)
    accuracy = [variants[pair % count].accuracy_of(variants[pair // count]) for pair in pairs.tolist()]
    return np.array(accuracy, np.float64)[of_pair]
