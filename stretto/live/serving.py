"""The engine as its parts know it: the generation that serves, its workers and the clock. Each part asks for more of it
in its own file, where it needs more.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from stretto.live.crew import Crew
from stretto.live.generation import Generation
from stretto.live.lookout import Clock


class Serving(Protocol):
    """On the loop's thread, as all that is done with it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    generation: Generation
    crew: Crew

    def act(self, generation: Generation) -> None:
        """Carry out what its dispatcher decided; to be called after whatever it was told."""
