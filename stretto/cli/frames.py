"""Frames over links: what `stretto load --network` sends, prints and draws, and what `stretto demo network` shares."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.bandwidth import read_bandwidth
from stretto.cli.output import print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.client.network import Link
    from stretto.client.network.result import FrameResult
    from stretto.client.network.spec import FramesNow, ReportFrames

REDRAW_S = 0.25
MAX_ROWS = 16  # clients in a table
MAX_CLIENTS = 4096
OUTCOME_WORDS = {
    "on_time": "answered on time",
    "late": "answered late",
    "too_late_to_send": "not sent, would be late",
    "too_many": "not sent, others under way",
    "held_back": "not sent, server asked to wait",
    "refused": "refused by the server",
    "failed": "no answer",
}


@dataclass(frozen=True)
class LinkOptions:
    """How the links of a load are made from one trace."""

    trace: str
    clients: int = 4
    delay_ms: float = 0.0
    form: str = "mbit"
    step_s: float = 1.0
    scale: float = 1.0

    def links(self, seed: int) -> tuple[tuple[Link, ...], tuple[str, ...]]:
        """One for each client, each from a random place of the trace; and their names."""
        import numpy as np

        from stretto.client.network import Link

        if not 1 <= self.clients <= MAX_CLIENTS:
            raise StrettoError(f"there may be from 1 to {MAX_CLIENTS} clients, not {self.clients}")
        bandwidth = read_bandwidth(self.trace, self.form, self.step_s, self.scale)
        delay_ns = round(self.delay_ms * 1e6)
        offsets_ns = np.random.default_rng((seed, 7)).integers(0, bandwidth.period_ns, self.clients)
        links = tuple(Link(bandwidth.shifted(int(offset_ns)), None, delay_ns, delay_ns) for offset_ns in offsets_ns)
        name = Path(self.trace).stem
        if bandwidth.period_ns == 10**9 or len(set(bandwidth.rates)) == 1:
            return links, tuple(f"{name} {number}" for number in range(1, self.clients + 1))
        return links, tuple(f"{name} from {offset_ns / 1e9:.0f} s" for offset_ns in offsets_ns)


@contextmanager
def watched(title: str) -> Iterator[ReportFrames | None]:
    """A live table on a terminal's standard error; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    from stretto.report.network_view import View

    view, drawn_s = View(), -1.0
    # Drawing takes milliseconds, in which no frame leaves: seldom, and never from a thread of its own.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(now: FramesNow) -> None:
            nonlocal drawn_s
            if time.monotonic() - drawn_s >= REDRAW_S:
                drawn_s = time.monotonic()
                live.update(view.table(now, title), refresh=True)

        yield show


def show_result(result: FrameResult, title: str, plot: Path | None, as_json: bool) -> None:
    """The plot, then the tables or JSON of one run."""
    summary = result.summary()
    if plot is not None and len(result):
        from stretto.report import plots
        from stretto.report.frames import frames_figure

        plots.save(frames_figure({"sizes as told": result}, title), plot)
    if as_json:
        print_json(summary)
        return
    print_tables(figures(summary, title), clients_table(summary))


def figures(summary: Mapping[str, Any], title: str) -> Any:
    """All clients together."""
    from stretto.report.tables import figures_table, milliseconds, share, whole

    total = max(1, summary["frames"])
    rows: dict[str, Sequence[str]] = {"frames": [whole(summary["frames"]), ""]}
    for name, count in summary["outcomes"].items():
        if count or name in ("on_time", "late"):
            rows[OUTCOME_WORDS[name]] = [whole(count), share(count / total)]
    for reason, count in summary["refusals"].items():
        rows[f"  refused, {reason.replace('_', ' ')}"] = [whole(count), share(count / total)]
    latency = " / ".join(milliseconds(summary["latency_ms"][name]) for name in ("p50", "p95", "p99"))
    rows |= {
        "missed": ["", _share(summary["miss_rate"])],
        "correct and on time": ["", _share(summary["correct_on_time_share"])],
        "accuracy of answers": ["", _share(summary["accuracy"])],
        "latency p50 / p95 / p99, ms": [latency, ""],
        "bandwidth, measured over given": ["", _share(summary["bandwidth_measured_over_given"])],
    }
    for edge, part in summary["edges"].items():
        rows[f"sent at {edge} px"] = ["", share(part)]
    return figures_table(title, "figure", ["value", "share"], rows)


def clients_table(summary: Mapping[str, Any]) -> Any:
    """One client a row; where there are many, those that missed most."""
    from stretto.report.tables import figures_table, milliseconds

    clients = summary["clients"]
    shown = sorted(clients, key=lambda client: -(client["miss_rate"] or 0.0))[:MAX_ROWS]
    title = "clients" if len(shown) == len(clients) else f"the {MAX_ROWS} of {len(clients)} clients that missed most"
    rows = {
        client["link"]: [
            str(client["frames"]),
            _share(client["miss_rate"]),
            _share(client["correct_on_time_share"]),
            "–" if client["mean_edge"] is None else f"{client['mean_edge']:.1f}",
            "–" if client["size_follows_bandwidth"] is None else f"{client['size_follows_bandwidth']:+.2f}",
            milliseconds(client["latency_ms"]["p99"]),
        ]
        for client in (clients if len(shown) == len(clients) else shown)
    }
    columns = ["frames", "missed", "correct, on time", "mean px", "size with bandwidth", "p99 ms"]
    return figures_table(title, "link", columns, rows)


def _share(value: float | None) -> str:
    from stretto.report.tables import share

    return "–" if value is None else share(value)
