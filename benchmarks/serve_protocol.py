"""Triton's own client, 2.73, in its own process, over HTTP and gRPC, against the whole server: every check must pass.

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
TOKEN = "a-token-for-this-run-only"


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(CLIENT)], check=True)
    subprocess.run([str(CLIENT / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE], check=True)


def checks(script: str, inference: str, management: str, token: str | None) -> dict[str, str]:
    """By name: "pass", or what went wrong."""
    command = [str(CLIENT / "bin" / "python"), str(ROOT / "tests" / "api" / script), "--application", "fashion"]
    command += ["--inference", inference, "--management", management, "--reload"]
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
            with started_server(["zoo", "--workers", "1", "--log-level", "error", *secured]) as server:
                address = server.addresses
                for protocol, script, pair in (
                    ("HTTP", "tritonclient_http.py", (address["http"], address["management"])),
                    ("gRPC", "tritonclient_grpc.py", (address["grpc"], address["management grpc"])),
                ):
                    found = checks(script, *pair, token)
                    wrong = {name: result for name, result in found.items() if result != "pass"}
                    for name, result in found.items():
                        bench.row(protocol=protocol, token=token is not None, check=name, result=result[:200])
                    bench.claim(
                        f"tritonclient 2.73 over {protocol}{'' if token is None else ', with a token'}: checks passed",
                        paper="-",
                        target=f"all {len(found)}",
                        ours=len(found) - len(wrong),
                        met=not wrong and len(found) > 15,
                    )
    bench.finish()


if __name__ == "__main__":
    main()
