"""Images of 600 kB as float32, one a request, through one server process: requests and bytes a second, and the latency
that the server adds around a batch of one.

The model looks at a few values and costs next to nothing, so that what is measured is the way of the bytes: socket,
body, batch. The server has the cores that are there but one, which drives it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import Benchmark
from benchmarks.serving import ROOT, closed_loop, on_other_cores
from stretto.cli.started import started_server

SHAPE = (3, 224, 224)
APPLICATION = f"""slo_ms = 200
[input]
name = "x"
shape = {list(SHAPE)}
[output]
name = "y"
kind = "values"
shape = [3]
[limits]
max_batch = 16
"""
VARIANT = """backend = "callable"
code = "model:corner"
accuracy = 0.5
accuracy_source = "literature"
"""
MODEL = """import numpy as np

def corner(batch):
    return np.ascontiguousarray(batch[:, :, 0, 0])
"""
SECONDS, REPEATS = 3.0, 3
CONNECTIONS = (1, 8)
LEAST_RATE, LEAST_BYTES, MOST_ADDED_MS = 1700.0, 1e9, 0.6


def write_repository(folder: Path) -> None:
    variant = folder / "images" / "variants" / "corner"
    variant.mkdir(parents=True)
    (folder / "images" / "app.toml").write_text(APPLICATION)
    (variant / "variant.toml").write_text(VARIANT)
    (variant / "model.py").write_text(MODEL)
    subprocess.run([sys.executable, "-m", "stretto", "profile", str(folder)], check=True, capture_output=True, cwd=ROOT)


def body() -> tuple[bytes, list[str]]:
    raw = np.random.default_rng(1).random((1, *SHAPE), np.float32).tobytes()
    tensor = {"name": "x", "shape": [1, *SHAPE], "datatype": "FP32", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, [f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream"]


def main() -> None:
    bench = Benchmark("large_bodies")
    data, headers = body()
    found: dict[int, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        arguments = [folder, "--workers", "1", "--executor", "thread", "--log-level", "error"]
        with started_server(arguments, prefix=on_other_cores(-1)) as server:
            for connections in CONNECTIONS * REPEATS:
                used: list[float] = []

                def mark(used: list[float] = used) -> None:
                    used.append(server.cpu_s())

                result = closed_loop(
                    server.addresses["http"],
                    "/v2/models/images/infer",
                    data,
                    headers,
                    connections=connections,
                    seconds=SECONDS,
                    core=-1,
                    counting=mark,
                    counted=mark,
                )
                rate = result["answers"] / result["seconds"]
                found.setdefault(connections, []).append((rate, result["p50_ms"]))
                bench.row(
                    connections=connections,
                    requests_s=rate,
                    gigabytes_s=rate * len(data) / 1e9,
                    p50_ms=result["p50_ms"],
                    p99_ms=result["p99_ms"],
                    errors=result["errors"],
                    cpu_ms=(used[1] - used[0]) / max(1, result["answers"]) * 1e3,
                )
    rate = statistics.median(rate for rate, _ in found[CONNECTIONS[-1]])
    added_ms = statistics.median(p50 for _, p50 in found[1])
    what = f"float32 images of {len(data) / 1e3:.0f} kB, one a request, one server process"
    target = f"≥ {LEAST_RATE:.0f}"
    bench.claim(f"{what}, requests/s", paper="-", target=target, ours=rate, met=rate >= LEAST_RATE)
    moved = rate * len(data)
    bench.claim(f"{what}, GB/s", paper="-", target="≥ 1", ours=moved / 1e9, met=moved >= LEAST_BYTES)
    what = "client to client around a model that takes no time, one connection, p50 ms"
    bench.claim(what, paper="-", target=f"≤ {MOST_ADDED_MS}", ours=added_ms, met=added_ms <= MOST_ADDED_MS)
    bench.finish()


if __name__ == "__main__":
    main()
