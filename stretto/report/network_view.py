"""Frames over a network while they are sent: a row per client, for a terminal that is drawn a few times a second."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from rich.table import Table
from rich.text import Text

from stretto.client.network.spec import ClientNow, FramesNow

BLOCKS = " ▁▂▃▄▅▆▇█"
HISTORY = 24  # looks that a small chart shows
BAR = 12  # characters of the latency's bar, up to twice the SLO


class View:
    """Remembers the last bandwidths and sizes of each client, so that a row shows where it comes from."""

    def __init__(self) -> None:
        self._given: dict[str, deque[float]] = {}
        self._edges: dict[str, deque[float]] = {}

    def table(self, now: FramesNow, title: str) -> Table:
        """The state as a table; call it once a look."""
        table = Table(
            title=f"{title} · {min(now.elapsed_s, now.seconds):.0f} of {now.seconds:.0f} s",
            title_justify="left",
            header_style="bold",
        )
        for name, justify in (
            *(("link", "left"), ("bandwidth", "left"), ("kbit/s", "right"), ("measured", "right")),
            *(("size", "left"), ("px", "right"), ("variant", "left")),
            *((f"latency, SLO {now.slo_ms:g} ms", "left"), ("missed", "right"), ("correct", "right")),
        ):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for client in now.clients:
            table.add_row(*self._row(client, now.slo_ms))
        return table

    def _row(self, client: ClientNow, slo_ms: float) -> list[Any]:
        given = self._given.setdefault(client.name, deque(maxlen=HISTORY))
        edges = self._edges.setdefault(client.name, deque(maxlen=HISTORY))
        given.append(client.given)
        edges.append(float(max(0, client.edge)))
        missed = client.missed / client.frames if client.frames else 0.0
        return [
            client.name,
            Text(chart(given), style="blue"),
            f"{client.given * 8e-3:.0f}",
            "–" if math.isnan(client.bandwidth) else f"{client.bandwidth * 8e-3:.0f}",
            Text(chart(edges), style="cyan"),
            f"{client.edge}" if client.edge > 0 else "–",
            client.variant or "–",
            latency_bar(client.latency_ms, slo_ms),
            Text(f"{missed:.1%}", style="red" if missed > 0.02 else "green"),
            f"{client.correct / client.frames:.1%}" if client.frames else "–",
        ]


def chart(values: deque[float]) -> str:
    """▁▃█: the last values, against the largest of them."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return ""
    return "".join(BLOCKS[max(1, math.ceil(value / highest * (len(BLOCKS) - 1)))] for value in values).ljust(HISTORY)


def latency_bar(latency_ms: float, slo_ms: float) -> Text:
    """The last answer's time against the SLO, which is the stroke in the middle."""
    if math.isnan(latency_ms):
        return Text("–")
    filled = min(BAR, round(latency_ms / (2 * slo_ms) * BAR))
    signs = ["█" if place < filled else "·" for place in range(BAR)]
    signs.insert(BAR // 2, "│")
    return Text(f"{''.join(signs)} {latency_ms:4.0f}", style="green" if latency_ms <= slo_ms else "red")
