"""Runs the fuzz by itself: `python -m benchmarks.fuzz.run --inputs 100000 --seed 1`. JSON on standard output.

Most inputs go to the parsers in this process; one in `--socket-share` goes over real sockets to the same service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from benchmarks.fuzz.parsers import ParserFuzz
from benchmarks.fuzz.server import target
from benchmarks.fuzz.sockets import SocketFuzz
from benchmarks.fuzz.verdict import Findings

SOCKET_SHARE = 0.02


async def fuzz(inputs: int, seed: int, socket_share: float = SOCKET_SHARE) -> Findings:
    """All of it against one service."""
    async with target() as served:
        findings = await ParserFuzz(served, seed).run(round(inputs * (1 - socket_share)))
        if socket_share > 0:
            sockets = SocketFuzz(served.address("http"), served.address("grpc"), seed + 1)
            findings.add(await sockets.run(max(1, round(inputs * socket_share))))
            if not await served.calm():
                findings.found("a hang: requests without an end", b"")
            if served.missing():
                findings.found("queries without an outcome", b"")
    return findings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--socket-share", type=float, default=SOCKET_SHARE)
    parser.add_argument("--keep", type=Path, help="a folder for the inputs of findings")
    arguments = parser.parse_args()
    began = time.perf_counter()
    findings = asyncio.run(fuzz(arguments.inputs, arguments.seed, arguments.socket_share))
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for number, (_, data) in enumerate(findings.kept):
            (arguments.keep / f"found-{number}.bin").write_bytes(data)
    told = {
        "inputs": findings.total,
        "by_kind": dict(findings.inputs),
        "statuses": dict(findings.statuses),
        "wrong": dict(findings.wrong),
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
