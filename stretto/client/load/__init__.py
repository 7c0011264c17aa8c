"""An open-loop load generator: requests leave when they are due, whatever became of those before them.

Latency counts from the moment a request was due, so that a slow server cannot hide by slowing the generator down.
"""

from stretto.client.load.result import LoadOutcome, LoadProgress, LoadResult
from stretto.client.load.run import drive, run_load
from stretto.client.load.spec import LoadSpec

__all__ = ["LoadOutcome", "LoadProgress", "LoadResult", "LoadSpec", "drive", "run_load"]
