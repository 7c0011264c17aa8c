"""Clients behind networks, to look at: tables; and bandwidth, size sent, latency and misses over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from stretto.core.outcome import Outcome
from stretto.report.colours import variant_colours
from stretto.report.plots import DROPPED, INK, MUTED, ON_TIME, grid_figure, legend_of_all
from stretto.report.tables import OUTCOME_WORDS, milliseconds, share, whole

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment
    from stretto.sim.network.clients import NetworkClient
    from stretto.sim.network.result import FrameFigures, NetworkResult, NetworkSummary

MOST_COLUMNS = 4
MOST_ROWS = 40
MOST_NAMES = 8  # along an axis


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


def network_figure(result: NetworkResult, deployment: Deployment, clients: Sequence[NetworkClient], title: str) -> Any:
    """For the first clients: bandwidth as it was and as the server knew it, size sent and model, latency and misses."""
    count = min(len(clients), MOST_COLUMNS)
    rungs = _rungs(deployment, {client.application for client in clients[:count]})
    slo_ns_of = {application.name: application.slo_ns for application in deployment.applications}
    answered = set(result.frames["variant"][result.frames["client"] < count].tolist())
    with grid_figure(4.2 * count, 6.5, 3, count, title) as (figure, axes):
        for number in range(count):
            _bandwidth(axes[0][number], result, clients[number], number)
            frames = result.frames[result.frames["client"] == number]
            _sizes(axes[1][number], frames, rungs, answered)
            asks = clients[number]
            _latency(axes[2][number], frames, asks.slo_ns or slo_ns_of[asks.application])
            axes[0][number].set_title(f"client {number}")
        axes[0][0].set_ylabel("Mbit/s")
        axes[1][0].set_ylabel("size, by variant")
        named = range(0, len(rungs), -(-len(rungs) // MOST_NAMES))
        axes[1][0].set_yticks(named, [rungs[place].name for place in named], fontsize=8)
        axes[2][0].set_ylabel("ms to the answer")
        for shared in (axes[0][0], axes[2][0]):
            shared.set_ylim(bottom=0)  # only now: it ends the scaling of an axis that clients drawn later share
        legend_of_all(figure, (axis for row in axes for axis in row))
    return figure


@dataclass(frozen=True)
class _Rung:
    """A variant, and its colour on the ladder of its application."""

    number: int
    name: str
    colour: str


def _rungs(deployment: Deployment, applications: set[str]) -> list[_Rung]:
    """Of each application, from fast to accurate."""
    rungs = []
    for place, application in enumerate(deployment.applications):
        if application.name not in applications:
            continue
        numbers = {deployment.variants[number].name: number for number in deployment.variants_of(place)}
        for name, colour in variant_colours(application.ladder).items():
            if name in numbers:
                shown = name if len(applications) == 1 else deployment.variant_label(numbers[name])
                rungs.append(_Rung(numbers[name], shown, colour))
    return rungs


def _bandwidth(axis: Any, result: NetworkResult, client: NetworkClient, number: int) -> None:
    end_s = int(result.summary.seconds)
    seconds = np.arange(0, end_s, 0.25)
    was = [client.bandwidth.rate_at(int(second * 1e9)) * 8e-6 for second in seconds]
    axis.step(seconds, was, where="post", color=MUTED, label="network")
    estimates = result.estimates[result.estimates[:, 1] == number]
    axis.plot(estimates[:, 0] / 1e9, estimates[:, 2] * 8e-6, color=ON_TIME, linewidth=1, label="as the server knows it")


def _sizes(axis: Any, frames: Any, rungs: Sequence[_Rung], answered: set[int]) -> None:
    """The size of each frame by the variant that takes it, in the colour of the variant that answered it. The legend
    names those of `answered`, which did so for any client.
    """
    height = np.full(max(rung.number for rung in rungs) + 1, np.nan)
    height[[rung.number for rung in rungs]] = np.arange(len(rungs))
    sent = frames[frames["sent_ns"] >= 0]
    axis.step(sent["made_ns"] / 1e9, height[sent["size"]], where="post", color=MUTED, linewidth=0.5)
    for rung in rungs:
        if rung.number in answered:
            ran = frames[frames["variant"] == rung.number]
            axis.scatter(ran["made_ns"] / 1e9, height[ran["size"]], s=6, color=rung.colour, label=rung.name)
    missed = frames[frames["outcome"] != Outcome.ON_TIME]
    axis.plot(missed["made_ns"] / 1e9, height[missed["size"]], "x", markersize=4, color=DROPPED, label="missed")


def _latency(axis: Any, frames: Any, slo_ns: int) -> None:
    answered = frames[frames["outcome"] <= Outcome.LATE]
    latency_ms = (answered["answered_ns"] - answered["made_ns"]) / 1e6
    axis.plot(answered["made_ns"] / 1e9, latency_ms, ".", markersize=2, color=INK)
    axis.axhline(slo_ns / 1e6, color=DROPPED, linewidth=1, label="SLO")
    axis.set_xlabel("s")
