"""Stretto: machine-learning inference under deadlines. See README.md and docs/design.md."""

import os

__version__ = "0.1.0"

# The linear systems of planners are small. Where cores are busy, OpenBLAS's threads spin waiting for each other, and
# one takes a hundred times as long. Read when NumPy and SciPy are loaded; who sets it keeps what he set.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
