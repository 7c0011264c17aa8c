"""One identity may be several clients of a view, each of another application."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.client import Client
from stretto.core.view import View
from stretto.planners.jellyfish.planner import Jellyfish
from tests.planners.jellyfish.test_planner import deployed


def test_the_rates_of_one_identity_s_clients_are_steadied_apart() -> None:
    """Once the later one's rate was taken for both."""
    planner = Jellyfish()
    for rates in ((20.0, 5.0), (20.5, 5.5)):
        clients = tuple(
            Client(slot, "camera", 0, application=name, rate=rates[slot])
            for slot, name in enumerate(("detect", "hear"))
        )
        view = View(deployed(), rates=np.array([rates[0]]), clients=lambda clients=clients: clients)  # type: ignore[misc]
        steadied = planner._with_steady_rates(view).clients()
        assert [each.rate for each in steadied] == pytest.approx([20.0, 5.0], abs=0.3)
