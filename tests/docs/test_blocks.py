"""Every code block of README.md and docs/*.md does what it says: Python runs, files are read by who reads them, command
lines are taken by the command, and those that end by themselves run. What is not run has its reason here.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.scenario.read import parse_scenario, read_scenario
from stretto.cli.serve_config import read_serve_config
from stretto.planners.symphony import Symphony
from stretto.repository.read import read_repository, zoo_folder
from tests.api.serving import Running, repository_of
from tests.docs.blocks import ROOT, Block, blocks

ADDRESS = "http://127.0.0.1:8080"  # that the documents name; the server of these tests has another port
BLOCKS = blocks()
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

# -- what is not run, and why ----------------------------------------------------------------------------------------

TEXT = {
    ("README.md", "fashion_resolution: bursts of 3,600 images/s over 550, one worker"): "the table of a demo",
    (
        "README.md",
        "stretto/core       nouns: application, variant, profile, fleet, client, plan, view, outcome,"
        " telemetry, snapshot",
    ): "a list of folders",
    ("docs/cluster.md", "clients"): "a picture",
    ("docs/evidence.md", "Σ over classes of θ(class) · recall(variant, class)"): "a formula",
    ("docs/kubernetes.md", "- job_name: stretto"): "a part of Prometheus's own configuration, in YAML",
    (
        "docs/learning.md",
        "error: partial.safetensors: this policy is for pnasnet in 33.3 ms a query, which takes 40 ms"
        " here; train one for the instances in use",
    ): "an error message; tests/planners/edge_rl has it",
    (
        "docs/partitioning.md",
        "model resnet152 alone needs 9.1 GB, a worker has 8 GB; take a smaller variant, or workers with more memory",
    ): "error messages; tests/planners/partition has them",
    ("docs/repository.md", "REPO/"): "a tree of files; the test of the repository's documentation reads one",
    (
        "docs/serving.md",
        "$ curl -s http://127.0.0.1:8080/v2/models/fashion/feedback"
        """ -d '{"feedback": [{"id": "order-17", "label": 9}]}'""",
    ): "a call and its answer; test_feedback_is_counted_as_shown makes it",
    (
        "docs/serving.md",
        'POST /v2/systemsharedmemory/region/frames/register   {"key": "/frames", "offset": 0, "byte_size": 1000000}',
    ): "needs shared memory; tests/api/test_shared_memory.py sends such",
}
OF_OTHERS = {
    "make": "a target of the Makefile, which is checked to be there",
    "pip": "installs",
    "ray": "starts a cluster of Ray",
    "docker": "builds an image",
    "kubectl": "needs a cluster of Kubernetes",
}
NOT_RUN = {
    "serve": "runs until it is told to stop; tests/cli/test_serve.py runs it",
    "infer": "asks a server on its usual port; tests/cli/test_infer.py runs it",
    "load": "asks a server on its usual port; tests/cli/test_load.py runs it",
    "network": "runs until it is told to stop; tests/cli/test_network.py runs it",
    "scheduler": "runs until it is told to stop; tests/cli/test_roles.py runs it",
    "worker": "runs until it is told to stop; tests/cli/test_roles.py runs it",
    "front-end": "runs until it is told to stop; tests/cli/test_roles.py runs it",
    "repartition": "asks schedulers; tests/cli/test_repartition.py runs it",
    "train": "learns for minutes; tests/cli/test_train_ground.py and tests/training do",
    "tune": "judges for minutes; tests/cli/test_tune.py runs it",
    "profile": "measures for minutes; tests/cli/test_profile.py runs it",
    "demo": "drives a load for a minute; tests/cli/test_demo.py runs it",
    "compare": "simulates ten systems; tests/cli/test_cli.py runs it",
}
LINES_NOT_RUN: dict[str, str] = {
    "capacity zoo:fashion --load 20000 --min-accuracy 0.93 --cost gpu=2.5,cpu=0.1": "judges fleets for minutes",
    "simulate mine.toml": "shows a mistake in a file; tests/cli/test_scenario.py makes many",
    "simulate examples/edge/edge.toml --compare edge_rl,leave_it,joint,single_queue,stationary,infaas": (
        "simulates six planners for minutes"
    ),
    "setting events.jsonl": "needs a server's recording; tests/cli/test_setting.py has one",
    "setting events.jsonl --plot setting.png --out monday.npz": "needs a server's recording, too",
    "setting events.jsonl --out monday.npz": "needs a server's recording, too",
}
LIST_OF_COMMANDS = (
    "README.md",
    "stretto demo · stretto demo network  what is gained on a bursty load; and over four"
    " links of changing bandwidth, to look at",
)


# -- what the blocks find where they run -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the documents name: models of one's own, a planner of one's own, recorded conditions."""
    folder = tmp_path_factory.mktemp("documents")
    repository_of(folder / "models", "fashion", "mnist")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "mine.py").write_text(the("README.md", "from stretto.core.plan import").text)
    (folder / "scenario.toml").write_text((ROOT / "examples" / "twenty_models.toml").read_text())
    (folder / "wifi.txt").write_text((ROOT / "examples" / "jellyfish" / "uplink.txt").read_text())
    (folder / "rates.json").write_text(json.dumps({"fashion": 100, "mnist": 200}))
    (folder / "trained").mkdir()
    for name in ("partial.safetensors", "trained/policy.safetensors"):
        shutil.copy(ROOT / "examples" / "edge" / "partial.safetensors", folder / name)
    before = os.getcwd()
    os.chdir(folder)
    try:
        for line in (  # what other commands read; each test may run alone
            "setting examples/bursty.toml --out monday.npz",
            "partition scenario.toml --sub-clusters 4 --out partition.json",
        ):
            made = CliRunner().invoke(app, line.split())
            assert made.exit_code == 0, made.output
        yield folder
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = repository_of(tmp_path_factory.mktemp("served"), "fashion", "fashion_resolution")
    with Running(folder, only=("fashion/linear", "fashion_resolution/*")) as server:
        yield server.url()


def the(document: str, beginning: str) -> Block:
    return next(block for block in BLOCKS if block.document == document and block.text.startswith(beginning))


def of(language: str) -> Any:
    found = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", found, ids=[block.name for block in found])


def images(rows: int) -> np.ndarray:
    with np.load(zoo_folder() / "fashion" / "sample.npz") as stored:
        return stored["inputs"][:rows].astype(np.float32) / np.float32(255)


# -- Python ----------------------------------------------------------------------------------------------------------


def given(block: Block) -> dict[str, Any]:
    """Names that the text around a block speaks of."""
    if "deployment," in block.text and "load_setting" in block.text:
        scenario = read_scenario(ROOT / "examples" / "bursty.toml")
        return {"deployment": scenario.deployment, "planner": Symphony()}
    if "camera" in block.text:
        return {"camera": [image for image in images(5)]}
    return {"images": images(2), "photos": images(2)}


@of("python")
def test_python_runs(block: Block, workspace: Path, url: str) -> None:
    if "jpeg" in block.text:
        pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")
    host, port = url.removeprefix("http://").split(":")
    text = block.text.replace(ADDRESS, url).replace('"127.0.0.1", 8080', f'"{host}", {port}')
    code = compile(text, block.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = given(block)
    running = eval(code, names)
    if inspect.iscoroutine(running):
        asyncio.run(running)
    if "classify" in names:
        assert names["classify"](np.zeros((3, 1, 4), np.float32)).shape == (3, 2)
    if "load_setting" in names:
        assert names["setting"].arrivals
    if "read_repository" in names:
        assert len(names["deployment"].workers) == 4


# -- files -----------------------------------------------------------------------------------------------------------


def as_scenario(text: str, folder: Path) -> None:
    parse_scenario(text, folder=folder)


def as_serve_config(text: str, folder: Path) -> None:
    for name in ("token", "server.pem", "server.key"):
        (folder / name).write_text("0123456789abcdef\n")
    (folder / "serve.toml").write_text(text)
    assert read_serve_config(folder / "serve.toml").values


def as_application(text: str, folder: Path) -> None:
    shutil.copytree(zoo_folder() / "fashion", folder / "written" / "fashion", dirs_exist_ok=True)
    (folder / "written" / "fashion" / "app.toml").write_text(text)
    assert read_repository(folder / "written").application("fashion").slo_ms == 50


def as_variant(text: str, folder: Path) -> None:
    shutil.copytree(zoo_folder() / "fashion", folder / "ruled" / "fashion", dirs_exist_ok=True)
    variant = folder / "ruled" / "fashion" / "variants" / "rules"
    variant.mkdir()
    (variant / "variant.toml").write_text(text)
    (variant / "heart_rules.py").write_text(the("docs/repository.md", "import numpy").text)
    assert read_repository(folder / "ruled").application("fashion").variant("rules").backend == "callable"


CLUSTER = "[cluster]\nworkers = 8\n"
KINDS = the("docs/scenario.md", "[[cluster.group]]").text
LOAD = '[load]\nkind = "poisson"\nrate = 100\n'
READERS: dict[tuple[str, str], Callable[[str, Path], None]] = {
    ("README.md", "[cluster]"): as_scenario,
    ("docs/learning.md", "[planner]"): as_serve_config,
    ("docs/partitioning.md", "[planner]"): as_serve_config,
    ("docs/repository.md", "slo_ms = 50"): as_application,
    ("docs/repository.md", 'backend = "callable"'): as_variant,
    ("docs/scenario.md", "[cluster]"): lambda text, folder: as_scenario(text + with_two_kinds(False) + LOAD, folder),
    ("docs/scenario.md", "[[cluster.group]]"): lambda text, folder: as_scenario(text + with_two_kinds() + LOAD, folder),
    ("docs/scenario.md", "[[application]]"): lambda text, folder: as_scenario(KINDS + text + LOAD, folder),
    ("docs/scenario.md", "[[clients]]"): lambda text, folder: as_scenario(behind_networks(text), folder),
    ("docs/serving.md", "[listen]"): as_serve_config,
}


def with_two_kinds(are_there: bool = True) -> str:
    """The application of the same page, which has latencies of two kinds; or the README's, for workers of one."""
    if are_there:
        return the("docs/scenario.md", "[[application]]").text
    return the("README.md", "[cluster]").text.partition("\n\n")[2].partition("[load]")[0]


def behind_networks(clients: str) -> str:
    """The example of clients behind networks, with these in the place of its own."""
    example = (ROOT / "examples" / "jellyfish" / "four_clients.toml").read_text()
    return example.partition("[[clients]]")[0] + clients


@of("toml")
def test_files_are_read(block: Block, workspace: Path) -> None:
    assert block.key in READERS, f"{block.name}: say in READERS who reads this"
    shutil.copy(ROOT / "examples" / "jellyfish" / "uplink.txt", workspace)
    READERS[block.key](block.text, workspace)


@of("json")
def test_json_is_json(block: Block) -> None:
    text = block.text.strip()
    assert json.loads(text if text.startswith("{") else "{" + text + "}")


@of("text")
def test_what_is_no_code_is_known(block: Block) -> None:
    """A new block is code, or is listed with what it is."""
    assert block.key in TEXT, f"{block.name} is in no known language; say in TEXT what it is"


def test_feedback_is_counted_as_shown(url: str) -> None:
    command, answer = the("docs/serving.md", "$ curl").text.splitlines()
    tensor = {"name": "input", "shape": [1, 1, 28, 28], "datatype": "FP32", "data": images(1).reshape(-1).tolist()}
    asked = json.dumps({"id": "order-17", "inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/fashion/infer", asked) as response:
        label = int(np.argmax(json.load(response)["outputs"][0]["data"]))
    method, _, path, _, body = shlex.split(command.removeprefix("$ "))[0:5]
    assert method == "curl"
    said = json.loads(body)
    said["feedback"][0]["label"] = label
    with urllib.request.urlopen(path.replace(ADDRESS, url), json.dumps(said).encode()) as response:
        assert json.load(response) == json.loads(answer)


def test_reasons_are_of_blocks_that_are_there() -> None:
    keys = {block.key for block in BLOCKS}
    assert set(TEXT) <= keys and set(READERS) <= keys and LIST_OF_COMMANDS in keys
    said = {command.partition(" ")[2] for block in BLOCKS if block.language == "shell" for command in block.commands()}
    assert set(LINES_NOT_RUN) <= said
    assert set(NOT_RUN) <= set(COMMANDS)


# -- command lines ---------------------------------------------------------------------------------------------------


def lines() -> list[tuple[Block, str]]:
    """One by one; in the list of all commands their names alone are meant."""
    return [(b, line) for b in BLOCKS if b.language == "shell" and b.key != LIST_OF_COMMANDS for line in b.commands()]


def is_placeholder(argument: str) -> bool:
    return re.fullmatch(r"[A-Z]+", argument) is not None


def test_the_list_of_commands_is_complete() -> None:
    block = next(block for block in BLOCKS if block.key == LIST_OF_COMMANDS)
    listed = {part.removeprefix("stretto ").split()[0] for line in block.commands() for part in line.split(" · ")}
    assert listed == {name for name, command in COMMANDS.items() if not command.hidden}


@pytest.mark.parametrize(("block", "line"), lines(), ids=[f"{block.name} {line[:60]}" for block, line in lines()])
def test_command_lines_are_taken(block: Block, line: str, workspace: Path) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments[0] in targets
    if program in OF_OTHERS:
        return
    name, *rest = arguments
    COMMANDS[name].make_context(name, list(rest))  # refuses options that are not there, and values of another type


def runs() -> list[str]:
    whole = dict.fromkeys(line.removeprefix("stretto ") for _, line in lines() if line.startswith("stretto "))
    wanted = [line for line in whole if line.split()[0] not in NOT_RUN and line not in LINES_NOT_RUN]
    return [line for line in wanted if not any(map(is_placeholder, shlex.split(line)))]


@pytest.mark.parametrize("line", runs())
def test_commands_that_end_by_themselves_run(line: str, workspace: Path) -> None:
    result = CliRunner().invoke(app, shlex.split(line))
    assert result.exit_code == 0, result.output
    assert "falls short" not in result.output  # as README's line of capacity once said below its own answer
