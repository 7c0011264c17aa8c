"""Files of plain arrays (.npz), looked at before memory is taken for them."""

from __future__ import annotations

import math
import zipfile

import numpy as np


def check_arrays(archive: zipfile.ZipFile, most_bytes: int) -> bool:
    """Whether all arrays together are small enough. ValueError where a header asks for more than the file has, or for
    anything but numbers.
    """
    for member in archive.infolist():
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            reads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = reads[version](file)
            if dtype.kind not in "iuf" or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                raise ValueError("the header does not tell what is there")
    return sum(member.file_size for member in archive.infolist()) <= most_bytes
