"""What may not move while the source is reshaped: what people type and read, what is simulated, and what is recorded.

    python benchmarks/gate.py --freeze     writes benchmarks/gate/ from the code as it is
    python benchmarks/gate.py              compares the code with it, and names each difference

Parts: the names of commands, options, metrics and error sentences; the JSON of simulations, plans and capacities by
every planner; the replay of live runs that were recorded; the answers of a server to requests, good and bad.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import re
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.started import started_server
from stretto.client.load import LoadSpec, run_load

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "benchmarks" / "gate"
Found = dict[str, Any]

# -- names -----------------------------------------------------------------------------------------------------------


def commands() -> Found:
    """What `--help` says of each: options with their values, bounds, defaults and words."""
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    wide = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    return {f"command {name}": CliRunner().invoke(app, [name, "--help"], env=wide).output for name in names}


def sentences() -> Found:
    """What errors say, by the texts that are raised; the values within a text are left out."""
    found: Found = {}
    for path in sorted((ROOT / "stretto").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for argument in node.exc.args:
                    text = _text(argument)
                    if " " in text:
                        found[f"sentence {text}"] = True
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


# -- what is simulated -----------------------------------------------------------------------------------------------

TIMES = re.compile(r"cpu|wall|elapsed|took|plan_ms|seconds_of_planning")
EDGE = ("edge_rl", "leave_it", "single_queue", "stationary", "infaas", "lightweight", "heavyweight")
CASES = (
    *(("simulate", f"examples/{name}.toml") for name in ("bursty", "resnet50_8_workers", "stepping", "specialists")),
    ("simulate", "examples/autoscaling.toml"),
    ("simulate", "examples/jellyfish/four_clients.toml"),
)
OTHERS = (
    ("plan", "zoo:fashion", "--workers", "2", "--load", "2000"),
    ("plan", "zoo:mnist", "--workers", "2", "--load", "900", "--planner", "ramsis"),
    ("capacity", "zoo:mnist", "--load", "2000", "--min-accuracy", "0.9", "--planner", "shared_queue"),
    ("capacity", "zoo:mnist", "--load", "2000", "--min-accuracy", "0.9", "--seconds", "1", "--cost", "gpu=2.5,cpu=0.1"),
    ("goodput", "--model", "symphony_1080ti:ResNet50", "--slo-ms", "25", "--workers", "8"),
    ("bound", "--model", "symphony_1080ti:ResNet50", "--slo-ms", "25", "--workers", "8"),
    ("partition", "examples/twenty_models.toml", "--sub-clusters", "4"),
    ("planners",),
)


def runs() -> Iterator[tuple[str, ...]]:
    from stretto.planners.registry import ENTRIES

    yield from OTHERS
    for entry in ENTRIES:
        for command in CASES:
            yield (*command, "--planner", entry.name)
    for name in EDGE:
        yield ("simulate", "examples/edge/live.toml", "--planner", name)


def run(command: tuple[str, ...]) -> tuple[str, Any]:
    """The JSON of a command as a digest; what it says where it has none."""
    asked = command if command[0] == "planners" else (*command, "--json")
    result = CliRunner().invoke(app, list(asked))
    try:
        said = json.dumps(_without_times(json.loads(result.stdout)), sort_keys=True)
    except ValueError:
        said = result.output.replace(str(ROOT), "")
    return " ".join(command), [result.exit_code, hashlib.sha256(said.encode()).hexdigest(), said[:200]]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if not TIMES.search(key)}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value


def simulated() -> Found:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return {f"run {name}": said for name, said in pool.map(run, list(runs()))}


# -- what was recorded -----------------------------------------------------------------------------------------------

RECORDED = ("judged", "shared_queue", "symphony", "sneakpeek", "jellyfish")


def record(folder: Path) -> None:
    """Ten seconds of each planner, served live, as its server wrote them down."""
    folder.mkdir(parents=True, exist_ok=True)
    from stretto.cli.queries import sample_of

    inputs, labels = sample_of("fashion")
    for planner in RECORDED:
        with tempfile.TemporaryDirectory() as here:
            events = Path(here) / "events.jsonl"
            options = ["zoo:fashion", "--workers", "2", "--planner", planner, "--record", str(events)]
            with started_server([*options, "--no-judging", "--log-level", "error"]) as server:
                spec = LoadSpec("fashion", inputs, labels, url=server.url, rate=150.0, seconds=10.0, seed=3)
                run_load(spec)
            (folder / f"{planner}.jsonl.gz").write_bytes(gzip.compress(events.read_bytes(), mtime=0))


def replayed() -> Found:
    found: Found = {}
    for file in sorted((FROZEN / "recorded").glob("*.gz")):
        with tempfile.TemporaryDirectory() as here:
            events = Path(here) / "events.jsonl"
            events.write_bytes(gzip.decompress(file.read_bytes()))
            result = CliRunner().invoke(app, ["replay", str(events), "--json"])
            found[f"replay {file.stem}"] = json.loads(result.stdout) if result.exit_code == 0 else result.output
    return found


# -- what a server answers -------------------------------------------------------------------------------------------

CHANGES_WITH_TIME = re.compile(
    rb"(?i)^date: .*\r\n|(?<=\d)\.\d+|\b(?:slack_ms|queue_ms|run_ms|latency_ms)\W+[\d.e-]+", re.MULTILINE
)


def requests() -> Iterator[tuple[str, bytes]]:
    tensor = {"name": "input", "shape": [1, 1, 28, 28], "datatype": "FP32", "data": [0.5] * 784}
    good = {"id": "7", "inputs": [tensor], "parameters": {"deadline_ms": 20000}}
    bodies = {
        "good": good,
        "no inputs": {},
        "a list": [],
        "deadline": good | {"parameters": {"deadline_ms": -1}},
        "deadline of text": good | {"parameters": {"deadline_ms": "soon"}},
        "version": good | {"model_version": "none"},
        "two inputs": good | {"inputs": [tensor, tensor]},
        "wrong name": good | {"inputs": [tensor | {"name": "x"}]},
        "wrong type": good | {"inputs": [tensor | {"datatype": "FP99"}]},
        "wrong shape": good | {"inputs": [tensor | {"shape": [1, 784]}]},
        "too few": good | {"inputs": [tensor | {"data": [1.0]}]},
        "not finite": good | {"inputs": [tensor | {"data": [1e40] * 784}]},
        "outputs": good | {"outputs": [{"name": "probabilities", "parameters": {"classification": 3}}]},
        "unknown output": good | {"outputs": [{"name": "none"}]},
        "priority": good | {"parameters": {"priority": 3, "deadline_ms": 20000}},
        "min accuracy": good | {"parameters": {"min_accuracy": 2, "deadline_ms": 20000}},
        "unknown parameter": good | {"parameters": {"colour": "red", "deadline_ms": 20000}},
    }
    for name, body in bodies.items():
        yield f"infer {name}", _post("/v2/models/mnist/infer", json.dumps(body).encode())
    yield "infer broken json", _post("/v2/models/mnist/infer", b'{"inputs": [')
    yield "infer pinned", _post("/v2/models/mnist/versions/linear/infer", json.dumps(good).encode())
    yield "infer nobody", _post("/v2/models/nobody/infer", json.dumps(good).encode())
    yield "feedback", _post("/v2/models/mnist/feedback", b'{"feedback": [{"id": "none", "label": 1}]}')
    yield "feedback broken", _post("/v2/models/mnist/feedback", b'{"feedback": 1}')
    for path in (
        "",
        "v2",
        "v2/health/live",
        "v2/health/ready",
        "v2/models/mnist",
        "v2/models/mnist/config",
        "v2/fleet",
    ):
        yield f"get /{path}", f"GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    for name, text in {
        "garbage": "GARBAGE\r\n\r\n",
        "no host": "GET /v2 HTTP/1.1\r\n\r\n",
        "two lengths": "POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        "bad chunk": "POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "old protocol": "GET /v2/health/live HTTP/1.0\r\n\r\n",
        "expect": "POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: magic\r\nContent-Length: 2\r\n\r\n",
    }.items():
        yield name, text.encode()


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def answered() -> Found:
    found: Found = {}
    options = ["zoo:mnist", "--variant", "linear", "--workers", "1", "--planner", "symphony", "--no-judging"]
    with started_server([*options, "--log-level", "error"]) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        for name, request in requests():
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(request)
                connection.settimeout(3)
                said = b""
                try:
                    while part := connection.recv(65_536):
                        said += part
                except (TimeoutError, ConnectionError):
                    pass
            found[f"answer {name}"] = CHANGES_WITH_TIME.sub(b"", said).decode("latin-1")
        with urllib.request.urlopen(f"{server.management_url}/metrics", timeout=10) as response:
            text = response.read().decode()
    for name in re.findall(r"^# (?:HELP|TYPE) .*$", text, re.MULTILINE):
        found[f"metric {name}"] = True
    return found


# -- all of it -------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Found]] = {
    "commands": commands,
    "sentences": sentences,
    "answered": answered,
    "simulated": simulated,
    "replayed": replayed,
}


def differences(was: Found, now: Found) -> Iterator[str]:
    for key in sorted(was.keys() | now.keys()):
        if key not in now:
            yield f"gone: {key}"
        elif key not in was:
            yield f"new: {key}"
        elif was[key] != now[key]:
            yield f"changed: {key}\n    was {str(was[key])[:300]}\n    now {str(now[key])[:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freeze", action="store_true", help="write what is found, in the place of what was frozen")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given several times")
    asked = parser.parse_args()
    chosen = asked.part or list(PARTS)
    if asked.freeze and "replayed" in chosen:
        record(FROZEN / "recorded")
    count = 0
    for part in chosen:
        began, file = time.monotonic(), FROZEN / f"{part}.json"
        now = json.loads(json.dumps(PARTS[part]()))
        if asked.freeze:
            FROZEN.mkdir(exist_ok=True)
            file.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(f"{part}: {len(now)} frozen in {time.monotonic() - began:.0f} s", flush=True)
            continue
        found = list(differences(json.loads(file.read_text(encoding="utf-8")), now))
        count += len(found)
        print(f"{part}: {len(now)} looked at in {time.monotonic() - began:.0f} s, {len(found)} differ", flush=True)
        for text in found:
            print(f"  {text}")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
