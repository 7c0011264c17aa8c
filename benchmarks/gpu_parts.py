"""The parts of gpu_serve: each starts servers of its own, loads them, and adds its rows and claims.

A claim's text and a row's `part` begin with the part's name, so that a part which is run again replaces its own alone.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np
import orjson

from benchmarks.gpu_ladder import curve, ladder
from benchmarks.gpu_load import Measured
from benchmarks.gpu_models import Photos, best_throughput, profiles
from benchmarks.gpu_stage import HOLDS, WITHOUT, WITHOUT_VARIABLE, LeftOut, Stage, environment, wait_for_workers
from benchmarks.replay import worker_processes
from benchmarks.serve_faults import balance, metrics
from benchmarks.serving import on_other_cores, one_by_one

KILL_AFTER_S, KILL_LOAD_S = 1.0, 2.5
MEMORY_MB = 100.0  # of GPU memory, what counts as returned: the driver rounds


def rates(stage: Stage) -> None:
    """One image a request as bytes. A server that has only just started gets its first load, then the next one."""
    photos = stage.setup.photos
    folder = stage.ready(photos)
    for pair in batched(stage.setup.rates, 2):
        with stage.served(folder) as server:
            for number, rate in enumerate(pair):
                seen = stage.load(server, photos, rate)
                when = "right after the start" if number == 0 else f"right after {pair[0]:g}"
                stage.row(rate=rate, when=when, start_s=stage.start_s, **seen.row())
                share = seen.on_time_share
                what = f"{rate:g} requests/s of one image as bytes, {when}: on time"
                stage.claim(what, "≥ 0.999", share, share >= 0.999)


def batched(rates: Sequence[float], count: int) -> Iterable[Sequence[float]]:
    return (rates[first : first + count] for first in range(0, len(rates), count))


def goodput(stage: Stage) -> None:
    """One network alone, eight images a request, against the throughput that its profile says the graphs have."""
    setup = stage.setup
    points, limit, size = measured_goodput(stage, setup.photos)
    ours = held_goodput(points) / limit
    stage.claim(
        f"{setup.alone} alone, {setup.rows} images a request as bytes: most images/s on time where ≥ {HOLDS:.0%} are, "
        f"of the {limit:.0f} that the profile's best batch ({size}) gives",
        "≥ 0.85",
        ours,
        ours >= 0.85,
    )


def measured_goodput(stage: Stage, photos: Photos) -> tuple[list[Measured], float, int]:
    """At every share of what the profile's best batch gives; that, in images a second, and the batch."""
    setup = stage.setup
    folder = stage.ready(photos)
    limit, size = best_throughput(profiles(folder)[setup.alone])
    points: list[Measured] = []
    with stage.served(folder, "--variant", setup.alone) as server:
        for share in setup.shares:
            seen = stage.load(server, photos, share * limit / setup.rows, rows=setup.rows)
            points.append(seen)
            stage.row(offered_images_s=share * limit, of_limit=seen.goodput / limit, **seen.row())
    return points, limit, size


def onnx(stage: Stage) -> None:
    """Two of the networks as ONNX files, on ONNX Runtime's CUDA provider: one image a request on a fresh server, and
    the goodput of one alone, whose copies do not overlap with its batches, against load.
    """
    setup = stage.setup
    check_onnx(on_gpu="cuda" in setup.serve)
    folder = stage.ready(setup.onnx)
    with stage.served(folder) as server:
        for rate in setup.onnx_rates:
            seen = stage.load(server, setup.onnx, rate)
            stage.row(rate=rate, start_s=stage.start_s, **seen.row())
            share = seen.on_time_share
            what = f"{rate:g} requests/s of one image as bytes, from ONNX files: on time"
            stage.claim(what, "≥ 0.999", share, share >= 0.999)
    measured_goodput(stage, setup.onnx)


def check_onnx(on_gpu: bool) -> None:
    import onnxruntime

    if importlib.util.find_spec("onnx") is None:
        raise LeftOut("networks cannot be exported without onnx (pip install onnx)")
    if on_gpu and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise LeftOut("this ONNX Runtime has no CUDA (pip install onnxruntime-gpu in place of onnxruntime)")


def held_goodput(points: Sequence[Measured]) -> float:
    """Images a second on time, the most among the loads that were carried; 0 where none was."""
    return max((point.goodput for point in points if point.on_time_share >= HOLDS), default=0.0)


def float32(stage: Stage) -> None:
    """One image a request as float32 numbers, which are four times the bytes."""
    photos = stage.setup.floats
    folder = stage.ready(photos)
    points: list[Measured] = []
    with stage.served(folder) as server:
        for rate in stage.setup.float_rates:
            points.append(stage.load(server, photos, rate))
            stage.row(rate=rate, mb_s=rate * np.prod(photos.shape) * 4 / 1e6, **points[-1].row())
    most = max(point.goodput for point in points)
    stage.claim(
        "one image a request as float32, answered on time by one server, requests/s", "≥ 1700", most, most >= 1700
    )


def load(stage: Stage) -> None:
    """From the start of the process until it serves all networks with all their batch sizes."""
    folder = stage.ready(stage.setup.photos, warms=False)
    with stage.served(folder):
        pass
    own = {f"{name} alone, ms": stored.load_ms for name, stored in profiles(folder).items()}
    stage.row(start_s=stage.start_s, **own)
    count = len(stage.setup.photos.networks)
    what = f"{count} networks with their ladders, from the start of the process until it serves, s"
    stage.claim(what, "≤ 20", stage.start_s, stage.start_s <= 20)


def latency(stage: Stage) -> None:
    """One connection, one request at a time: what is added around a batch of 1. The client has a core of its own, as in
    large_bodies. What the server says of its part tells whether the rest lies with the worker or around it.
    """
    setup, photos = stage.setup, stage.setup.floats
    folder = stage.ready(photos)
    own_ms = profiles(folder)[setup.alone].batches[1].p50
    with np.load(setup.file(photos), allow_pickle=False) as arrays:
        body, headers = binary_body(arrays["inputs"][:1])
    with stage.served(folder, "--variant", setup.alone, prefix=on_other_cores(-1)) as server:
        path = f"/v2/models/{photos.name}/infer"
        seen = one_by_one(server.addresses["http"], path, body, headers, seconds=setup.seconds, core=-1)
        counted = metrics(server)
    parts = {
        f"{name}_mean_ms": 1e3 * counted[f"{name} sum"] / max(1.0, counted[f"{name} count"])
        for name in sorted(key.partition(" ")[0] for key in counted if key.endswith(" sum"))
    }
    added_ms = seen["p50_ms"] - own_ms
    stage.row(p50_ms=seen["p50_ms"], p99_ms=seen["p99_ms"], own_p50_ms=own_ms, answers=seen["answers"], **parts)
    what = f"client to client over loopback, {len(body) / 1e3:.0f} kB, batch 1, p50 over the profile's own l(1), ms"
    stage.claim(what, "≤ 0.6", added_ms, added_ms <= 0.6 and seen["errors"] == 0)


def binary_body(array: np.ndarray) -> tuple[bytes, list[str]]:
    """An inference of one tensor as bytes behind its JSON, and the headers that go with it."""
    datatype = {"float32": "FP32", "uint8": "UINT8"}[str(array.dtype)]
    raw = np.ascontiguousarray(array).tobytes()
    size = {"binary_data_size": len(raw)}
    tensor = {"name": "input", "datatype": datatype, "shape": list(array.shape), "parameters": size}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return head + raw, [f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream"]


def kill(stage: Stage) -> None:
    """kill -9 of the worker process under load, again and again."""
    setup, photos = stage.setup, stage.setup.photos
    folder = stage.ready(photos)
    memory = setup.gpu_memory_mb or (lambda: 0.0)
    at_first = memory()
    parts: list[Measured] = []
    back_s: list[float] = []
    with stage.served(folder, "--variant", setup.killed) as server:
        pid = server.process.pid
        stage.load(server, photos, setup.kill_rate, seconds=1.0)
        before, workers = metrics(server), len(worker_processes(pid))
        steady = memory()
        for _ in range(setup.kills):
            killer = threading.Timer(KILL_AFTER_S, kill_a_worker, (pid,))
            killer.start()
            parts.append(stage.load(server, photos, setup.kill_rate, seconds=KILL_LOAD_S))
            killer.join()
            back_s.append(wait_for_workers(server, workers))
        last = stage.load(server, photos, setup.kill_rate, seconds=2.0)
        after, left, again = metrics(server), len(worker_processes(pid)), memory()
    ended = memory()
    asked = sum(part.requests for part in parts) + last.requests
    submitted = after["stretto_queries_submitted_total"] - before["stretto_queries_submitted_total"]
    restarts = after["stretto_worker_restarts_total"] - before["stretto_worker_restarts_total"]
    alive = [part.before(KILL_AFTER_S * 0.9) for part in parts] + [last.on_time_share]
    stage.row(
        kills=setup.kills,
        restarts=restarts,
        requests=asked,
        submitted=submitted,
        back_s=float(np.median(back_s)),
        gpu_mb=f"{at_first:.0f} without, {steady:.0f} before, {again:.0f} after, {ended:.0f} at the end",
        ends="; ".join(sorted({str(part.row()["ends"]) for part in parts})[:4]),
    )
    stage.claim("workers started again", f"{setup.kills}", restarts, restarts == setup.kills)
    stage.claim("queries without an outcome, by the server's counts", "0", balance(after), balance(after) == 0)
    answers = sum(after[word] - before[word] for word in ("on_time", "late"))
    seen = sum(part.answers for part in (*parts, last))
    what = f"answers by the server's counts over the {seen} that the clients saw"
    stage.claim(what, "0", answers - seen, answers == seen)
    unseen = sum(part.unseen for part in (*parts, last))
    stage.claim(f"of {asked} requests, those that the clients saw no end of", "0", unseen, unseen == 0)
    stage.claim(
        "on time before each kill and after the last, the least share", "≥ 0.98", min(alive), min(alive) >= 0.98
    )
    stage.claim("worker processes left behind", "0", left - workers, left == workers)
    if setup.gpu_memory_mb is not None:
        grown, kept = again - steady, ended - at_first
        stage.claim("GPU memory after the kills over before them, MB", f"≤ {MEMORY_MB:g}", grown, grown <= MEMORY_MB)
        stage.claim("GPU memory after the end over before the start, MB", f"≤ {MEMORY_MB:g}", kept, kept <= MEMORY_MB)


def kill_a_worker(pid: int) -> None:
    for worker in worker_processes(pid)[:1]:
        os.kill(worker, signal.SIGKILL)


def compare(stage: Stage) -> None:
    """The same engine with all it has, and without one thing at a time."""
    setup, photos = stage.setup, stage.setup.photos
    folder = stage.ready(photos)
    shares: dict[str, list[float]] = {}
    for without in ("", *WITHOUT):
        with environment(WITHOUT_VARIABLE, without), stage.served(folder) as server:
            for rate in setup.compare_rates:
                seen = stage.load(server, photos, rate, seconds=setup.seconds * 0.75)
                shares.setdefault(without, []).append(seen.on_time_share)
                stage.row(without=without or "nothing", rate=rate, start_s=stage.start_s, **seen.row())
    best = max(WITHOUT, key=lambda one: fmean(shares[one]))
    times = fmean(shares[""]) / max(fmean(shares[best]), 1e-9)
    told = " and ".join(f"{rate:g}" for rate in setup.compare_rates)
    what = f"on time at {told} requests/s, their mean, over that without {best}, the best of the three without"
    stage.claim(what, "≥ 1", times, times >= 1)


PARTS: dict[str, Callable[[Stage], None]] = {
    "load": load,
    "rates": rates,
    "goodput": goodput,
    "onnx": onnx,
    "float32": float32,
    "latency": latency,
    "ladder": ladder,
    "curve": curve,
    "kill": kill,
    "compare": compare,
}
