"""How accurate a variant is on images that were sent at another size than its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stretto.repository.tensors import Size

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.variant import VariantFiles


def accuracy_by_size(files: ApplicationFiles, variant: VariantFiles) -> dict[Size, float]:
    """For each size that clients may send: as measured, else by the rule that an image made larger gains nothing.

    The rule takes the accuracy of the application's variants up to the smaller of the two sizes. It is kind to images
    made larger: a variant that never saw such images may do much worse, so what was measured goes first. Empty where
    clients have no choice.
    """
    measured = {} if variant.metrics is None else variant.metrics.accuracy_by_size
    return {size: measured.get(size, _by_rule(files, variant, size)) for size in files.input.sizes}


def _by_rule(files: ApplicationFiles, variant: VariantFiles, size: Size) -> float:
    own_size = variant.input_shape[-2:]
    if all(sent >= taken for sent, taken in zip(size, own_size, strict=True)):
        return variant.accuracy
    others = [other for other in files.variants if other.has_rank]
    pixels = math.prod(size)
    up_to = [other.accuracy for other in others if math.prod(other.input_shape[-2:]) <= pixels]
    if not up_to:  # smaller than any variant's own: at most what the smallest can do
        smallest = min(others, key=lambda other: math.prod(other.input_shape[-2:]), default=variant)
        up_to = [smallest.accuracy]
    return min(variant.accuracy, max(up_to))
