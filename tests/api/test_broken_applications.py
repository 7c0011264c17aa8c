"""One application that cannot be read, or that nobody has profiled, is its own affair: the others are served, at the
start, when something is loaded and when files change, and each broken one has its reason in the log and in the index.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.client import Client, NotFound
from stretto.repository.problems import RepositoryError
from stretto.repository.read import inspect_repository, read_repository
from tests.api.serving import Reply, Running, json_body
from tests.cli.test_serve import FREE, LIMIT_S, Served, ready, served
from tests.repository.build import KIND, Built, build

ROW = json_body(np.zeros((1, 1, 4), np.float32))
NAMES = tuple("abcdefgh")


def not_toml(folder: Path) -> None:
    (folder / "app.toml").write_text("slo_ms = = 50\n")


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def half_copied(folder: Path) -> None:
    model = folder / "variants" / "fast" / "model.onnx"
    model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])


def unreadable(folder: Path) -> None:
    labels = folder / "labels.txt"
    labels.unlink()
    os.mkfifo(labels)  # whoever opened it would wait for ever


def link_to_nowhere(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent / "nowhere")


# What breaks an application, and what its reason says.
BREAKS: tuple[tuple[Callable[[Path], None], str], ...] = (
    (not_toml, "app.toml:1: not valid TOML"),
    (empty_folder, "app.toml: there is no such file"),
    (half_copied, "variants/fast/model.onnx: is no ONNX model, or is cut off or damaged; copy or export it again"),
    (unreadable, "labels.txt: is no plain file"),
    (link_to_nowhere, "this symbolic link leads nowhere"),
)


def add(root: Path, name: str, **variant: Any) -> Path:
    """An application of one variant; it is there at once."""
    made = Built(root.parent / "on-its-way")
    made.write_app()
    (made.app / "labels.txt").write_text("left\nmiddle\nright\n")
    made.add("fast", 0.7, **variant)
    root.mkdir(exist_ok=True)
    made.app.rename(root / name)
    return root / name


def eight(root: Path, broken: int) -> Path:
    for name in NAMES:
        add(root, name)
    for name, (spoil, _) in zip(NAMES[:broken], BREAKS, strict=False):
        spoil(root / name)
    return root


def running(root: Path) -> Running:
    return Running(root, only=(), kind=KIND)


def manage(server: Running, path: str) -> Reply:
    return server.ask("POST", f"/v2/repository/{path}", name="management")


def index(server: Running) -> dict[str, list[tuple[str, str, str]]]:
    """By application: version, state and reason."""
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for row in manage(server, "index").content:
        rows.setdefault(row["name"], []).append((row["version"], row["state"], row["reason"]))
    return rows


def answers(server: Running, name: str) -> bool:
    return server.ask("POST", f"/v2/models/{name}/infer", ROW).status == 200


@pytest.mark.parametrize("broken", range(1, len(BREAKS) + 1))
def test_broken_at_the_start(broken: int, tmp_path: Path, complaints: list[str]) -> None:
    """Any one of them once ended the start, with nothing served."""
    root = eight(tmp_path / "models", broken)
    with running(root) as server:
        rows = index(server)
        for name in NAMES[broken:]:
            assert answers(server, name)
            assert rows[name] == [("fast", "READY", "")]
        for name, (_, says) in zip(NAMES[:broken], BREAKS, strict=False):
            ((version, state, reason),) = rows[name]
            assert (version, state) == ("", "UNAVAILABLE") and says in reason
            assert str(tmp_path) not in reason
            lines = [line for line in complaints if f"application {name} cannot be read" in line]
            assert len(lines) == 1 and says in lines[0]
            assert server.ask("POST", f"/v2/models/{name}/infer", ROW).status == 404
        service = server.service
        missing = server.call(lambda: service.offer.missing(service.engine.generation.served))
        assert sorted(missing) == list(NAMES[:broken])  # for who is ready only with all of them


def test_broken_ones_keep_nobody_from_being_loaded(tmp_path: Path, complaints: list[str]) -> None:
    """Beside one to five of them, each loaded on demand, others are added, mended and unloaded, and workers come."""
    root = eight(tmp_path / "models", 0)
    with running(root) as server:
        for number, (spoil, says) in enumerate(BREAKS):
            new = f"broken_{number}"
            add(root, new)
            spoil(root / new)
            refused = manage(server, f"models/{new}/load")
            assert refused.status == 400 and says in refused.content["error"], refused.content
            add(root, f"sound_{number}")
            assert manage(server, f"models/sound_{number}/load").status == 200
            assert answers(server, f"sound_{number}") and answers(server, "a")
            ((version, state, reason),) = index(server)[new]
            assert (version, state) == ("", "UNAVAILABLE") and says in reason
            assert sum(f"application {new} cannot be read" in line for line in complaints) == 1
        server.run(server.service.changes.add_workers("cpu"))
        assert manage(server, "models/sound_0/unload").status == 200
        assert manage(server, "models/sound_0/load").status == 200
        shutil.rmtree(root / "broken_0")
        add(root, "broken_0")
        assert manage(server, "models/broken_0/load").status == 200 and answers(server, "broken_0")


@pytest.mark.parametrize("spoil", [not_toml, half_copied, unreadable])
def test_what_is_served_and_breaks_is_served_on(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """Its files are half written, perhaps. Changes of the others are taken up meanwhile."""
    root = eight(tmp_path / "models", 0)
    says = dict(BREAKS)[spoil]
    with running(root) as server:
        spoil(root / "a")
        refused = manage(server, "models/a/load")
        assert refused.status == 400 and says in refused.content["error"]
        add(root, "new")
        assert manage(server, "models/new/load").status == 200 and answers(server, "new")
        assert answers(server, "a")
        ((version, state, reason),) = index(server)["a"]
        assert (version, state) == ("fast", "READY") and says in reason
        shutil.rmtree(root / "a")
        add(root, "a")
        assert manage(server, "models/a/load").status == 200 and answers(server, "a")
        assert index(server)["a"] == [("fast", "READY", "")]


def test_what_nobody_profiled_says_so(tmp_path: Path, complaints: list[str]) -> None:
    """An application without a profile once ended the start; a new variant was "not served", and nothing said why."""
    root = eight(tmp_path / "models", 0)
    shutil.rmtree(root / "a" / "variants" / "fast" / "profiles")
    with running(root) as server:
        new = Built(tmp_path / "new")
        new.add("better", 0.9, profile=None, seed=1)
        shutil.copytree(new.variant("better"), root / "b" / "variants" / "better")
        assert manage(server, "models/b/load").status == 200
        rows = index(server)
        says = f"no profile for machine kind {KIND}; run stretto profile {root}"
        assert rows["a"] == [("fast", "UNAVAILABLE", says)]
        assert rows["b"] == [("better", "UNAVAILABLE", says), ("fast", "READY", "")]
        for label in ("a/fast", "b/better"):
            assert sum(f"{label} is left out: {says}" in line for line in complaints) == 1
        refused = manage(server, "models/a/load")
        assert refused.status == 400 and says in refused.content["error"]
        assert answers(server, "b") and answers(server, "c")


def test_where_nothing_can_be_read_there_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name, (spoil, _) in zip(NAMES, BREAKS, strict=False):
        add(root, name)
        spoil(root / name)
    with pytest.raises(RepositoryError) as caught:
        read_repository(root)
    for name, (_, says) in zip(NAMES, BREAKS, strict=False):
        assert any(f"models/{name}" in str(each) and says in str(each) for each in caught.value.problems)
    _, problems = inspect_repository(root)
    assert len(problems.errors) >= len(BREAKS)
    with served(str(root), *FREE, "--kind", KIND) as server:
        assert server.ended() == 2
        assert any(line.startswith("error: ") for line in server.lines)


def until(condition: Callable[[], bool], server: Served) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert server.process.poll() is None and time.monotonic() < end, server.lines
        time.sleep(0.02)


def is_ready(client: Client, application: str) -> bool:
    try:
        return client.ready(application)
    except NotFound:
        return False


def told(server: Served, words: str) -> list[str]:
    return [line for line in list(server.lines) if words in line]


def test_a_server_that_watches_its_files(tmp_path: Path) -> None:
    """A process as an operator runs it: five broken ones come while it serves, with one that is sound."""
    root = build(tmp_path / "models").root
    with served(str(root), *FREE, "--kind", KIND, "--workers", "1", "--reload-s", "0.3") as server:
        http = server.addresses()["http"]
        assert ready(f"http://{http}")
        for number, (spoil, _) in enumerate(BREAKS):
            add(tmp_path / "aside", f"broken_{number}")
            spoil(tmp_path / "aside" / f"broken_{number}")
        add(tmp_path / "aside", "sound")
        for folder in sorted((tmp_path / "aside").iterdir()):
            folder.rename(root / folder.name)
        for number, (_, says) in enumerate(BREAKS):
            left_out = f"application broken_{number} cannot be read and is left out: "
            until(lambda left_out=left_out: bool(told(server, left_out)), server)  # type: ignore[misc]
            assert says in told(server, left_out)[0]
        rows = np.zeros((1, 1, 4), np.float32)
        with Client(f"http://{http}") as client:
            until(lambda: is_ready(client, "sound"), server)
            assert client.infer("sound", rows, deadline_ms=30_000).variant == "fast"
            assert client.infer("rows", rows, deadline_ms=30_000).variant in ("fast", "good")
