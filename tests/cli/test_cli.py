"""The commands as a person runs them: help, tables, JSON, files, and errors as sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto import __version__
from stretto.cli import compare
from stretto.cli.main import app
from stretto.planners.registry import NAMES

SMALL = """\
name = "small"
seconds = 2

[cluster]
workers = 2

[[application]]
name = "classify"
slo_ms = 25

[[application.variant]]
name = "fast"
alpha_ms = 1.0
beta_ms = 5.0
accuracy = 0.75

[[application]]
name = "detect"
slo_ms = 50

[[application.variant]]
name = "detector"
alpha_ms = 2.0
beta_ms = 6.0

[load]
kind = "poisson"
rate = 400
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def printed(*arguments: object) -> Any:
    """The JSON that a command prints; standard output must hold nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    """The message of a command that must fail in words."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    return result.stderr.removeprefix("error: ").strip()


def test_help_loads_nothing_heavy() -> None:
    # Wall time would say how busy the machine is; what was imported says how fast help can be.
    code = (
        "import sys\nfrom stretto.cli.main import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print({'numpy', 'numba', 'scipy', 'matplotlib', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "set()"
    assert "simulate" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("simulate", "goodput", "bound", "plan", "capacity", "planners", "compare", "demo"),
        *("serve", "infer", "load", "replay", "setting", "tune", "check", "profile"),
    ],
)
def test_every_command_has_help_with_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"  stretto {command}" in result.stdout


def test_version_and_bare_call() -> None:
    assert run("--version").stdout == f"stretto {__version__}\n"
    assert "Commands" in run().output


def test_planners_are_listed_with_their_options() -> None:
    table, data = run("planners"), printed("planners")
    assert set(data) == set(NAMES)
    assert all(name in table.stdout for name in NAMES)
    assert "ahead_ms" in table.stdout


def test_simulate_prints_a_table(small: Path) -> None:
    result = run("simulate", small)
    assert result.exit_code == 0, result.output
    for word in ("small: 2 s, seed 1, symphony", "goodput", "mean batch", "detect"):
        assert word in result.stdout
    assert result.stderr == ""


def test_simulate_json_is_whole_and_stable(small: Path) -> None:
    first, again = (run("simulate", small, "--json").stdout for _ in range(2))
    assert first == again
    data = json.loads(first)
    assert list(data) == sorted(data)
    summary = data["runs"]["symphony"]
    assert summary["submitted"] == sum(summary["outcomes"].values()) + summary["unfinished"]
    assert {each["name"] for each in summary["applications"]} == {"classify", "detect"}


def test_seed_seconds_and_planner_go_before_the_file(small: Path) -> None:
    runs = printed("simulate", small, "--planner", "clipper", "--seed", 5, "--seconds", 1)
    assert list(runs["runs"]) == ["clipper"] and runs["seed"] == 5
    assert runs["runs"]["clipper"]["seconds"] == 1
    assert runs["runs"]["clipper"]["submitted"] < 600


def test_compare_runs_the_same_load_under_each_planner(small: Path, tmp_path: Path) -> None:
    plot = tmp_path / "compare.png"
    runs = printed("simulate", small, "--compare", "symphony, clockwork,nexus", "--plot", plot)["runs"]
    assert set(runs) == {"symphony", "clockwork", "nexus"}
    assert len({summary["submitted"] for summary in runs.values()}) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    table = run("simulate", small, "--compare", "symphony,clockwork").stdout
    assert "clockwork" in table and "workers busy" in table


def test_out_is_the_same_to_the_byte(small: Path, tmp_path: Path) -> None:
    files = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for file in files:
        assert run("simulate", small, "--out", file).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_one_run_can_be_plotted(small: Path, tmp_path: Path, suffix: str) -> None:
    plot = tmp_path / f"run{suffix}"
    assert run("simulate", small, "--plot", plot).exit_code == 0
    assert plot.stat().st_size > 1000


def test_bound_of_a_model_is_the_one_of_table_4(small: Path, tmp_path: Path) -> None:
    file = tmp_path / "table4.toml"
    file.write_text(
        "[cluster]\nworkers = 8\n[[application]]\nname = 'a'\nslo_ms = 25\n[[application.variant]]\nname = 'ResNet50'\n"
        "alpha_ms = 1.053\nbeta_ms = 5.072\n[load]\nkind = 'poisson'\nrate = 5000\n"
    )
    goodput = printed("bound", file)["goodput"]
    assert (goodput["staggered_batch"], round(goodput["staggered"])) == (16, 5839)
    assert (goodput["uncoordinated_batch"], round(goodput["uncoordinated"])) == (7, 4501)
    assert goodput["fluid"] >= goodput["staggered"]
    table = run("bound", file).stdout
    assert "5,839" in table and "4,501" in table
    several = printed("bound", small)
    assert several["goodput"]["staggered"] is None
    assert several["at_rate"]["correct_share"] == pytest.approx((0.75 + 1.0) / 2)


def test_goodput_lies_below_the_bound(tmp_path: Path) -> None:
    plot = tmp_path / "goodput.png"
    what = ("--model", "symphony_1080ti:ResNet50", "--slo-ms", 25, "--workers", 2, "--seconds", 2, "--seeds", 1)
    found = printed("goodput", *what, "--compare", "symphony,clockwork", "--plot", plot)
    assert set(found["planners"]) == {"symphony", "clockwork"}
    assert 0 < found["planners"]["symphony"]["goodput"] < found["bounds"]["staggered"] * 1.05
    assert plot.exists()
    assert "of the staggered bound" in run("goodput", *what).stdout


def test_compare_tells_what_was_gained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its picture has a name of its own: it was written over that of `stretto demo`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "LOADS", (0.9, 1.0))
    plot = Path("stretto_compare.png")
    result = run("compare", "--seconds", 0.2)
    assert result.exit_code == 0, result.output
    *_, where, gained = result.stdout.strip().splitlines()
    assert where == f"plot: {plot}" and plot.exists()
    assert gained.startswith("Deferring batches answered ") and "%" in gained


def test_mistakes_in_a_scenario_name_the_file_and_the_line(small: Path) -> None:
    small.write_text(SMALL.replace("workers = 2", "workers = 0"))
    assert refused("simulate", small) == f"{small}:5: workers is 0; it must be from 1 to 65536"
    assert "no such file" in refused("simulate", small.with_name("none.toml"))


def test_mistakes_in_options_are_sentences(small: Path, tmp_path: Path) -> None:
    assert "there is no planner 'clockwrok'" in refused("simulate", small, "--planner", "clockwrok")
    assert "give one of them" in refused("simulate", small, "--planner", "nexus", "--compare", "nexus")
    assert "must be from 0" in refused("simulate", small, "--seed", -1)
    assert "--seconds is nan" in refused("simulate", small, "--seconds", "nan")
    assert "must end in .png" in refused("simulate", small, "--plot", tmp_path / "plot.txt")
    assert "there is no folder" in refused("simulate", small, "--plot", tmp_path / "none" / "plot.png")
    assert "must end in .npz" in refused("simulate", small, "--out", tmp_path / "out.csv")
    assert "one planner" in refused("simulate", small, "--compare", "nexus,clipper", "--out", tmp_path / "out.npz")
    assert "name a scenario file" in refused("goodput")
    assert "leave one of them out" in refused("goodput", small, "--workers", 3)
    assert "did you mean ResNet50?" in refused("bound", "--model", "symphony_1080ti:ResNet5O")
    assert "is no name" in refused("bound", "--model", "it's")
    assert "shape" in refused("bound", "--model", "symphony_1080ti:ResNet50", "--arrivals", "gamma")
    assert "'x' is no number" in refused("bound", "--model", "symphony_1080ti:ResNet50", "--arrivals", "gamma:x")
    assert "raise the SLO" in refused("goodput", "--model", "symphony_1080ti:ResNet50", "--slo-ms", 1)


def test_plots_without_matplotlib_say_what_to_install(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused("simulate", small, "--plot", tmp_path / "plot.png")
    assert "pip install 'stretto[plot]'" in message


def test_bound_draws_its_plot(tmp_path: Path) -> None:
    plot = tmp_path / "bound.png"
    shown = CliRunner().invoke(app, ["bound", "--model", "symphony_1080ti:ResNet50", "--plot", str(plot)])
    assert shown.exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_no_accuracy_is_shown_where_none_was_given(small: Path) -> None:
    """A scenario without accuracies was told to be right in 100.00% of its answers."""
    shown = run("simulate", small, "--seconds", 0.2).stdout
    assert "accuracy" not in shown and "correct" not in shown and "on time" in shown
    summary = printed("simulate", small, "--seconds", 0.2)["runs"]["symphony"]
    assert summary["accuracy"] is None and summary["correct_on_time"] is None
    assert {each["name"]: each["accuracy"] for each in summary["applications"]} == {"classify": 0.75, "detect": None}
    compared = run("simulate", small, "--seconds", 0.2, "--compare", "symphony,clipper").stdout
    assert "accuracy" not in compared
    small.write_text(small.read_text().replace("beta_ms = 6.0", "beta_ms = 6.0\naccuracy = 0.75"))
    assert "75.00%" in run("simulate", small, "--seconds", 0.2).stdout
    assert printed("simulate", small, "--seconds", 0.2)["runs"]["symphony"]["accuracy"] == 0.75
