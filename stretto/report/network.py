"""Clients behind networks, to look at: tables; and bandwidth, size sent, latency and misses over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from stretto.core.outcome import Outcome
from stretto.report.plots import DROPPED, INK, MUTED, ON_TIME, grid_figure
from stretto.report.tables import OUTCOME_WORDS, milliseconds, share, whole

if TYPE_CHECKING:
    from stretto.sim.network.clients import NetworkClient
    from stretto.sim.network.result import FrameFigures, NetworkResult, NetworkSummary

MOST_COLUMNS = 4
MOST_ROWS = 40


def network_table(summaries: Mapping[str, NetworkSummary], title: str) -> Table:
    """A row for each planner."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("planner", no_wrap=True)
    for name in ("frames", "missed", "accuracy", "p50 / p99, ms", "workers busy", "plans", "given up by clients"):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        latency = f"{milliseconds(summary.latency_ms['p50'])} / {milliseconds(summary.latency_ms['p99'])}"
        figures = (share(summary.miss_rate), _accuracy(summary), latency, share(summary.worker_use))
        table.add_row(name, whole(summary.frames), *figures, whole(summary.plans), whole(summary.dropped_at_client))
    return table


def clients_table(summary: NetworkSummary) -> Table:
    """A row for each client, the first ones."""
    table = Table(title="clients", title_justify="left", header_style="bold")
    for name in ("client", "frames", "missed", "accuracy", "p50 / p99, ms", "Mbit/s sent"):
        table.add_column(name, justify="right")
    for number, client in enumerate(summary.clients[:MOST_ROWS]):
        latency = f"{milliseconds(client.latency_ms['p50'])} / {milliseconds(client.latency_ms['p99'])}"
        figures = (share(client.miss_rate), _accuracy(client), latency, f"{client.megabit_per_s:.2f}")
        table.add_row(str(number), whole(client.frames), *figures)
    return table


def _accuracy(figures: FrameFigures) -> str:
    return share(figures.accuracy) if figures.has_accuracy else "–"


def outcome_rows(summary: NetworkSummary) -> list[tuple[str, str]]:
    """What became of frames, in words."""
    return [(OUTCOME_WORDS[name], whole(count)) for name, count in summary.outcomes.items() if count]


def network_figure(result: NetworkResult, clients: Sequence[NetworkClient], title: str) -> Any:
    """For the first clients: bandwidth as it was and as the server knew it, size sent and model, latency and misses."""
    count = min(len(clients), MOST_COLUMNS)
    with grid_figure(4.2 * count, 6.5, 3, count, title) as (figure, axes):
        for number in range(count):
            _bandwidth(axes[0][number], result, clients[number], number)
            frames = result.frames[result.frames["client"] == number]
            _sizes(axes[1][number], frames)
            _latency(axes[2][number], frames, clients[number])
            axes[0][number].set_title(f"client {number}")
        axes[0][0].set_ylabel("Mbit/s")
        axes[1][0].set_ylabel("size, by variant")
        axes[2][0].set_ylabel("ms to the answer")
        axes[0][0].legend(loc="upper right", fontsize=8)
        axes[1][0].legend(loc="lower right", fontsize=8)
    return figure


def _bandwidth(axis: Any, result: NetworkResult, client: NetworkClient, number: int) -> None:
    end_s = int(result.summary.seconds)
    seconds = np.arange(0, end_s, 0.25)
    was = [client.bandwidth.rate_at(int(second * 1e9)) * 8e-6 for second in seconds]
    axis.step(seconds, was, where="post", color=MUTED, label="network")
    estimates = result.estimates[result.estimates[:, 1] == number]
    axis.plot(estimates[:, 0] / 1e9, estimates[:, 2] * 8e-6, color=ON_TIME, linewidth=1, label="as the server knows it")
    axis.set_ylim(bottom=0)


def _sizes(axis: Any, frames: Any) -> None:
    sent = frames[frames["sent_ns"] >= 0]
    axis.plot(sent["made_ns"] / 1e9, sent["size"], ".", markersize=2, color=INK, label="sent")
    ran = frames[frames["variant"] >= 0]
    axis.plot(ran["made_ns"] / 1e9, ran["variant"], ",", color=ON_TIME, label="model")
    missed = frames[frames["outcome"] != Outcome.ON_TIME]
    axis.plot(missed["made_ns"] / 1e9, missed["size"], "x", markersize=4, color=DROPPED, label="missed")


def _latency(axis: Any, frames: Any, client: NetworkClient) -> None:
    answered = frames[frames["outcome"] <= Outcome.LATE]
    latency_ms = (answered["answered_ns"] - answered["made_ns"]) / 1e6
    axis.plot(answered["made_ns"] / 1e9, latency_ms, ".", markersize=2, color=INK)
    if client.slo_ns is not None:
        axis.axhline(client.slo_ns / 1e6, color=DROPPED, linewidth=1)
    axis.set_xlabel("s")
    axis.set_ylim(bottom=0)
