"""What a request asks besides its tensor, checked against its application.

Clients repeat themselves: what is said in the same bytes is checked once, and whoever says it again is taken by these
terms. They hold for the files that they were checked against, and for no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stretto.api.messages import WantedOutput

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Of a request that says nothing of its client, and gets numbers for its one tensor, which is taken as it comes."""

    files: ApplicationFiles
    version: str
    wanted: WantedOutput
    slack_ns: int
    priority: int
    min_accuracy: float
    ready: dict[tuple[Any, ...], bytes] = field(default_factory=dict)  # what a translator has ready for answers


class Form(Protocol):
    """What requests share that say the same."""

    terms: Terms | None  # once one of them was taken
