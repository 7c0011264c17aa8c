"""The picture of simulated clients behind networks."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.colors import to_hex

from stretto.core.deployment import Deployment
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.report.colours import variant_colours
from stretto.report.network import network_figure
from stretto.sim.network.run import simulate_network
from tests.report.test_plots import overlaps
from tests.sim.network.ladder import client, ladder


def test_sizes_go_from_fast_to_accurate_in_the_colours_of_the_whole_ladder() -> None:
    """They were numbers in the order of the file, all of one colour, and the legends lay on the data."""
    (application,) = ladder().applications
    large, small = application.variants[2], application.variants[0]
    served = replace(application, variants=(large, small), whole_ladder=("small", "middle", "large", "huge"))
    deployment = Deployment((served,), ladder().workers)
    clients = [client(4e6), client(300_000.0)]
    figure = network_figure(simulate_network(deployment, Jellyfish(), clients, seconds=3), deployment, clients, "t")
    sizes = figure.axes[2:4]
    assert [label.get_text() for label in sizes[0].get_yticklabels()] == ["small", "large"]
    names, colours = ("large", "small"), variant_colours(served.ladder)
    drawn = {
        dots.get_label(): (to_hex(dots.get_facecolor()[0]), max(dots.get_offsets()[:, 1]))
        for axes in sizes[::-1]
        for dots in axes.collections
        if len(dots.get_offsets())
    }
    assert drawn == {"small": (colours["small"], 0.0), "large": (colours["large"], 1.0)}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts() if text.get_text() in names] == ["small", "large"]
    assert not overlaps(figure)


def test_every_client_is_within_the_axes_that_clients_share() -> None:
    """Once: the first client's bandwidth and latency froze the top, and the curves of faster clients lay above it."""
    clients = [client(400_000.0), client(8e6), client(2e6)]
    figure = network_figure(
        simulate_network(ladder(), Jellyfish(), clients, seconds=3), ladder(), clients, "three clients"
    )
    for axes in (*figure.axes[0:3], *figure.axes[6:9]):
        bottom, top = axes.get_ylim()
        heights = [y for line in axes.get_lines() for y in line.get_ydata() if y == y]
        assert heights and bottom == 0 and max(heights) <= top
