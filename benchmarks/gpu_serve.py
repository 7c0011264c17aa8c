"""Serving from a GPU, as a new user would: export, `stretto profile`, `stretto serve --device cuda`, and load.

Four torchvision networks with random weights (SLO 50 ms), and the ladder of training.gpu with real accuracies. Clients
are processes of their own, open loop, Poisson; latency counts from the moment a request was due. Parts can be run one
by one (`--only rates,kill`); each replaces its own claims and rows. Without a GPU it says so and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_load import PROCESSES, Clients
from benchmarks.gpu_models import forget_profiles
from benchmarks.gpu_parts import PARTS
from benchmarks.gpu_stage import LeftOut, Setup, Stage, used_gpu_memory_mb
from benchmarks.harness import RESULTS, Benchmark

NAME = "gpu_serve"


def part_of_claim(claim: dict[str, Any]) -> str:
    return str(claim["what"]).partition(":")[0]


def with_other_parts(bench: Benchmark, earlier: dict[str, Any], ran: Sequence[str]) -> Benchmark:
    """With the claims and rows of parts that were not run this time, all in the parts' order. An application that was
    profiled anew has the rows of that profile alone: it may have other variants now.
    """
    bench = replace(bench, rows=list(bench.rows), claims=list(bench.claims))
    order = ["profile", *PARTS]
    profiled = {row["application"] for row in bench.rows if row["part"] == "profile"}
    for row in earlier.get("rows", ()):
        is_old_profile = row["part"] == "profile" and row["application"] in profiled
        if not is_old_profile and row["part"] not in ran:
            bench.rows.append(row)
    bench.claims += [claim for claim in earlier.get("claims", ()) if part_of_claim(claim) not in ran]
    bench.rows.sort(key=lambda row: order.index(row["part"]) if row["part"] in order else len(order))
    bench.claims.sort(
        key=lambda claim: order.index(part_of_claim(claim)) if part_of_claim(claim) in order else len(order)
    )
    return bench


def run_parts(
    bench: Benchmark, setup: Setup, chosen: Sequence[str], processes: int, ended: Callable[[list[str]], None]
) -> list[str]:
    """Those that ended, told after each; one that fails is told and costs the others nothing."""
    ran: list[str] = []
    warmed: set[str] = set()
    with Clients(processes) as clients:
        for name in chosen:
            began = time.monotonic()
            kept = len(bench.rows), len(bench.claims)
            try:
                PARTS[name](Stage(bench, clients, setup, name, warmed))
            except LeftOut as reason:
                print(f"{name}: left out, as {reason}", flush=True)
                continue
            except (Exception, SystemExit):
                traceback.print_exc()
                del bench.claims[kept[1] :]
                bench.rows[kept[0] :] = [row for row in bench.rows[kept[0] :] if row["part"] == "profile"]
                print(f"{name}: failed after {time.monotonic() - began:.0f} s; its earlier result stays", flush=True)
                continue
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
            ran.append(name)
            ended(ran)
    return ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--ladder", type=Path, help="the folder fashion_gpu that training.gpu made")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "stretto_gpu_serve")
    parser.add_argument("--profile-again", action="store_true", help="measure profiles that are there already")
    parser.add_argument("--seconds", type=float, default=Setup.seconds, help="of a load")
    parser.add_argument("--kills", type=int, default=Setup.kills)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="that send load")
    parser.add_argument("--out", type=Path, help="folder for a copy of the result")
    options = parser.parse_args()
    chosen = [name for name in PARTS if name in options.only.split(",")]
    if unknown := set(options.only.split(",")) - set(PARTS):
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    try:
        import torch
        import torchvision  # noqa: F401
    except ImportError as error:
        print(f"{NAME} needs PyTorch and torchvision ({error.name} is missing); the committed result stays as it is.")
        return
    if not torch.cuda.is_available():
        print(f"{NAME} needs a CUDA device, and there is none here; the committed result stays as it is.")
        return
    bench = Benchmark(NAME)
    setup = Setup(
        options.work,
        options.ladder,
        seconds=options.seconds,
        kills=options.kills,
        gpu_memory_mb=used_gpu_memory_mb,
    )
    if options.profile_again:
        folders = [setup.repository(photos) / photos.name for photos in (setup.photos, setup.floats, setup.onnx)]
        for folder in [*folders, *([options.ladder] if options.ladder else [])]:
            if folder.is_dir():
                forget_profiles(folder)
    # What pip installs comes with its bytecode. In an image without it PyTorch is compiled at every start, for 5 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-m", "stretto", "warm"], check=True, stdout=subprocess.DEVNULL)
    earlier_file = RESULTS / f"{NAME}.json"
    earlier = json.loads(earlier_file.read_text(encoding="utf-8")) if earlier_file.is_file() else {}

    def write(ran: list[str]) -> None:
        """What is measured stays, whatever becomes of the parts to come."""
        for row in bench.rows:
            row.setdefault("gpu", torch.cuda.get_device_name())
        with_other_parts(bench, earlier, ran).write()
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            shutil.copy(earlier_file, options.out)

    ran = run_parts(bench, setup, chosen, options.processes, write)
    if not ran:
        raise SystemExit("no part came to its end; the committed result stays as it is")
    with_other_parts(bench, earlier, ran).finish()


if __name__ == "__main__":
    main()
