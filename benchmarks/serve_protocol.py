"""Triton's own client, 2.73, in its own process, over HTTP and gRPC, against the whole server: every check must pass.

Twice: what users do with it, in many forms; and every public method of its four clients, blocking and asyncio, with
nothing left out: tensors in shared memory and settings of logs and traces too. Then the former again, against a server
with two front ends.

Needs tritonclient in a virtual environment of its own: `--install` makes it (.venv-tritonclient).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Benchmark
from benchmarks.serving import ROOT
from stretto.cli.started import started_server

CLIENT = ROOT / ".venv-tritonclient"
PACKAGE = "tritonclient[http,grpc]==2.73.0"
PROTOCOLS = {"HTTP": ("http", "management"), "gRPC": ("grpc", "management grpc")}
TOKEN = "a-token-for-this-run-only"


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(CLIENT)], check=True)
    subprocess.run([str(CLIENT / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE], check=True)


def checks(script: str, addresses: tuple[str, str], token: str | None, *options: str) -> dict[str, str]:
    """By name: "pass", or what went wrong. The addresses are those of inference and of management."""
    command = [str(CLIENT / "bin" / "python"), str(ROOT / "tests" / "api" / script), "--application", "fashion"]
    command += ["--inference", addresses[0], "--management", addresses[1], *options]
    command += [] if token is None else ["--token", token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if not done.stdout.strip():
        return {"the script": done.stderr[-500:]}
    found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true", help=f"install {PACKAGE} where it is missing")
    arguments = parser.parse_args()
    if arguments.install and not CLIENT.exists():
        install()
    if not (CLIENT / "bin" / "python").exists():
        raise SystemExit("tritonclient is not there; run: make bench NAME=serve_protocol ARGS=--install")
    bench = Benchmark("serve_protocol")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "token"
        file.write_text(TOKEN)
        for token in (None, TOKEN):
            secured = [] if token is None else ["--token-file", str(file), "--management-token-file", str(file)]
            command = ["zoo", "--workers", "1", "--log-level", "error", "--shared-memory", *secured]
            with started_server(command) as server:
                for protocol, names in PROTOCOLS.items():
                    addresses = server.addresses[names[0]], server.addresses[names[1]]
                    found = checks(f"tritonclient_{protocol.lower()}.py", addresses, token, "--reload")
                    tell(bench, f"tritonclient 2.73 over {protocol}", found, token, "checks")
                    for client in (protocol.lower(), f"{protocol.lower()}.aio"):
                        found = checks("tritonclient_surface.py", addresses, token, "--client", client)
                        calls = found.pop("calls", "0")
                        tell(bench, f"all {calls} public methods of tritonclient.{client}", found, token, "groups")
        secured = ["--token-file", str(file), "--management-token-file", str(file)]
        with started_server(["zoo", "--workers", "1", "--log-level", "error", "--front-ends", "2", *secured]) as server:
            for protocol, names in PROTOCOLS.items():
                addresses = server.addresses[names[0]], server.addresses[names[1]]
                found = checks(f"tritonclient_{protocol.lower()}.py", addresses, TOKEN, "--reload")
                tell(bench, f"tritonclient 2.73 over {protocol}, two front ends", found, TOKEN, "checks")
    bench.finish()


def tell(bench: Benchmark, what: str, found: dict[str, str], token: str | None, unit: str) -> None:
    wrong = {name: result for name, result in found.items() if result != "pass"}
    for name, result in found.items():
        bench.row(client=what, token=token is not None, check=name, result=result[:200])
    bench.claim(
        f"{what}{'' if token is None else ', with a token'}: {unit} passed",
        paper="-",
        target=f"all {len(found)}",
        ours=len(found) - len(wrong),
        met=not wrong and len(found) > 10,
    )


if __name__ == "__main__":
    main()
