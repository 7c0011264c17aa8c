"""The Python client: numpy arrays in and out, a deadline per call, and an exception for each way of getting no answer.

Imports numpy, httptools and stretto.core only, so that a program that just asks starts fast.
"""

from stretto.client.answer import Answer
from stretto.client.async_client import AsyncClient
from stretto.client.errors import (
    BadAnswer,
    BadRequest,
    Cancelled,
    ConnectionFailed,
    Expired,
    Failed,
    Forbidden,
    Infeasible,
    NotFound,
    Overloaded,
    StrettoClientError,
    Unauthenticated,
    Unavailable,
)
from stretto.client.frame_stats import Frame, FrameOutcome, FrameStats
from stretto.client.frames import AsyncFrameClient, FrameClient, FrameOptions
from stretto.client.sync_client import Client

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncFrameClient",
    "BadAnswer",
    "BadRequest",
    "Cancelled",
    "Client",
    "ConnectionFailed",
    "Expired",
    "Failed",
    "Forbidden",
    "Frame",
    "FrameClient",
    "FrameOptions",
    "FrameOutcome",
    "FrameStats",
    "Infeasible",
    "NotFound",
    "Overloaded",
    "StrettoClientError",
    "Unauthenticated",
    "Unavailable",
]
