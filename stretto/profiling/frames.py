"""How many bytes a client sends for a variant: images of the sample at the size sent for it, encoded."""

from __future__ import annotations

import math

from stretto.core.encoding import FORMATS, WHITE, encoded
from stretto.core.resize import resized
from stretto.repository.application import ApplicationFiles
from stretto.repository.images import can_decode
from stretto.repository.variant import VariantFiles

IMAGES = 200  # of the sample, at most


def frame_bytes(application: ApplicationFiles, variant: VariantFiles) -> int:
    """The mean, in the first encoding that app.toml allows besides raw. 0 where it allows none, where Pillow is not
    there or where there is no sample: then frames count as raw numbers.
    """
    takes = application.input
    encoding = next((name for name in takes.encodings if name in FORMATS), None)
    if encoding is None or application.sample_file is None or not can_decode():
        return 0
    height, width = takes.shape_for(variant.input_shape)[-2:]
    rows = resized(application.sample().inputs[:IMAGES], height, width)
    data = encoded(rows, encoding, white=WHITE / (takes.divide_by or 1.0))
    return math.ceil(sum(map(len, data)) / len(data))
