"""How processes beside the serving begin in tests: they end with it, as always, and take turns with everybody else.

On a machine whose cores are all busy, a process of the lowest priority gets no processor time at all.
"""

from __future__ import annotations

from stretto.live.aside import end_with_server


def take_turns() -> None:
    end_with_server()
