"""What `stretto train` learns on: repositories, recordings and scenarios, with any load; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.cli.train_ground import read_ground
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.live.recorder import recording
from stretto.planners.edge_rl.instances import instances_of
from stretto.sim.arrivals import Load
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import Gamma
from stretto.sim.residuals import Measured
from stretto.sim.tape import tape_of
from tests.live.scripted import MS, Stage, plan_for, serving, variant

EDGE = Path(__file__).resolve().parents[2] / "examples" / "edge" / "edge.toml"
MAP = """
[load]
kind = "markov"
d0 = [[-12, 1, 1], [0.5, -101, 0.5], [2, 1, -6]]
d1 = [[10, 0, 0], [0, 90, 10], [0, 1, 2]]
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def recorded(folder: Path) -> Path:
    """By a server with two workers, which answered ten queries, 20 ms apart."""
    served = serving(variant("fast", 0.6), variant("good", 0.8, 2, 10), crew=2)
    path = folder / "events.jsonl"
    with recording(path) as journal:
        made = Stage(served, plan_for(served), journal=journal)
        for _ in range(10):
            made.request(1, 400.0)
            made.wait(20)
            made.finish_all()
        made.close()
    return path


def test_a_repository_is_learned_on_as_it_is_served(tmp_path: Path) -> None:
    """Means decide, as in a server; workers are those that `stretto serve` would have."""
    ground = read_ground("zoo:fashion", write(tmp_path, "load.toml", MAP), 3, ())
    assert ground.deployment.quantile is Quantile.MEAN and len(ground.deployment.workers) == 3
    assert isinstance(ground.source, Load) and isinstance(ground.source.process, MarkovianArrivals)
    assert any("every worker runs" in warning for warning in ground.warnings)


def test_light_and_heavy_instances_are_those_of_the_workers(tmp_path: Path) -> None:
    load, named = write(tmp_path, "load.toml", MAP), ("cpu*2,variant=cnn_s", "cpu,variant=fashion/resnet_m")
    ground = read_ground("zoo:fashion", load, 0, named)
    variants = [ground.deployment.variants[instance.variant].name for instance in instances_of(ground.deployment)]
    assert variants == ["cnn_s", "cnn_s", "resnet_m"]
    assert not any("every worker runs" in warning for warning in ground.warnings)
    with pytest.raises(StrettoError, match="worker 'cpu,variant=cnn': there is no variant 'cnn'; there are"):
        read_ground("zoo:fashion", load, 0, ("cpu,variant=cnn",))


def test_a_log_of_queries_is_a_load(tmp_path: Path) -> None:
    log = write(tmp_path, "queries.csv", "time_ms,application,deadline_ms\n5,fashion,30\n7,fashion,\n12,fashion,40\n")
    ground = read_ground("zoo:fashion", log, 2, ())
    slo_ns = ground.deployment.applications[0].slo_ns
    assert tape_of(ground.source, ground.deployment, 1).queries.tolist() == [
        (0, 30 * MS),
        (2 * MS, slo_ns),
        (7 * MS, 40 * MS),
    ]


def test_a_recording_says_everything(tmp_path: Path) -> None:
    ground = read_ground(str(recorded(tmp_path)), None, 0, ())
    assert [variant.name for variant in ground.deployment.variants] == ["fast", "good"]
    assert isinstance(ground.service, Measured)
    assert np.diff(tape_of(ground.source, ground.deployment, 1).queries["time_ns"]).tolist() == [20 * MS] * 9


def test_another_load_takes_the_place_of_a_scenario_s_own(tmp_path: Path) -> None:
    gamma = write(tmp_path, "load.toml", '[load]\nkind = "gamma"\nshape = 0.5\nrate = 40\n')
    ground = read_ground(str(EDGE), gamma, 0, ())
    assert isinstance(ground.source, Load) and isinstance(ground.source.process, Gamma)
    assert ground.deployment.quantile is Quantile.P95


@pytest.mark.parametrize(
    ("what", "load", "workers", "says"),
    [
        ("zoo:fashion", None, 2, "zoo:fashion does not say what load there is; give --load FILE: EVENTS.jsonl"),
        ("zoo", "load.toml", 2, "trained for one application, and zoo has"),
        (str(EDGE), None, 2, "--workers and --worker are for a repository"),
        ("zoo:fashion", "load.txt", 2, "this is no load; give EVENTS.jsonl"),
        ("zoo:fashion", "wrong.csv", 2, "wrong.csv, line 2: the deployment has no application 'other'"),
        ("zoo:fashion", "wrong.toml", 2, r"wrong.toml:2: "),
        ("nothing.jsonl", None, 0, "nothing.jsonl"),
    ],
)
def test_what_is_refused(tmp_path: Path, what: str, load: str | None, workers: int, says: str) -> None:
    write(tmp_path, "load.toml", MAP)
    write(tmp_path, "load.txt", "")
    write(tmp_path, "wrong.csv", "time_ms,application\n5,other\n")
    write(tmp_path, "wrong.toml", '[load]\nkind = "gama"\n')
    with pytest.raises(StrettoError, match=says):
        ground = read_ground(what, None if load is None else tmp_path / load, workers, ())
        tape_of(ground.source, ground.deployment, 1)
