"""One queue, several models: which of them a batch runs on (ours).

The most accurate one that keeps up. A batch keeps up if it takes everybody who waits, or if batches like it, one after
the other on every worker, bring through what comes. So a queue that is behind is answered by smaller models until it
has caught up, and a short queue by larger ones than could keep up for long. Whether a batch is in time is reckoned with
the quantile that is planned with, what batches bring through with their mean: one that takes long is followed by
quicker ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.plan import Table
from stretto.core.profile import NS_PER_S
from stretto.planners.jellyfish.problem import NEVER_NS

COLUMNS = 256  # of slack, up to the longest batch
MOST_QUEUED = 512  # that are told apart; larger batches than this do not count as all who wait


def throughputs(mean_ns: NDArray[np.int64], workers: int) -> NDArray[np.float64]:
    """[model, batch]: queries/s that workers bring through in such batches; `mean_ns` likewise. Batch 0 brings none."""
    return workers * np.arange(mean_ns.shape[1]) * float(NS_PER_S) / np.maximum(mean_ns, 1)


def smallest_that_keep_up(throughput: NDArray[np.float64], rate: float) -> NDArray[np.int64]:
    """By model, the smallest batch that brings through `rate` queries/s; one more than the largest where none does."""
    does = throughput[:, 1:] >= rate
    smallest: NDArray[np.int64] = np.where(does.any(axis=1), does.argmax(axis=1) + 1, throughput.shape[1])
    return smallest


def stepping_table(variants: Sequence[int], needed_ns: NDArray[np.int64], keeps_up: NDArray[np.int64]) -> Table:
    """`variants`: the models' numbers, by rising accuracy. `needed_ns[model, batch]`: the slack that a head must have.
    `keeps_up[model]`: the smallest batch that does. Where nothing keeps up it is the first model.
    """
    largest = needed_ns.shape[1] - 1
    step_ns = -(-int(needed_ns[needed_ns < NEVER_NS].max()) // COLUMNS)
    slack_ns = np.arange(COLUMNS + 1) * step_ns
    queued = np.arange(min(largest, MOST_QUEUED) + 2)
    queued[-1] = largest + 1  # the last row is for more than any batch takes
    chosen = np.full((len(queued), len(slack_ns)), variants[0], np.int32)
    for variant, needed, enough in zip(variants, needed_ns, keeps_up.tolist(), strict=True):
        size = np.minimum(np.searchsorted(needed[1:], slack_ns, side="right")[None, :], queued[:, None])
        chosen[(size > 0) & ((size == queued[:, None]) | (size >= enough))] = variant
    return Table(step_ns, chosen, np.zeros_like(chosen))
