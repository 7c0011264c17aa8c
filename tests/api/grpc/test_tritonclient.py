"""NVIDIA's client, in a process of its own, against the translator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.api.grpc.running import run, served

SCRIPT = Path(__file__).resolve().parent.parent / "tritonclient_grpc.py"
pytestmark = pytest.mark.extras


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_tritonclient(tritonclient_python: str, token: str | None) -> None:
    async def scenario() -> dict[str, str]:
        async with served(is_management=False, token=token) as inference, served(token=token) as management:
            command = [tritonclient_python, str(SCRIPT), "--application", "classes", "--reload"]
            command += ["--inference", inference.address, "--management", management.address]
            command += [] if token is None else ["--token", token]
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            try:
                output, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
            assert output, errors.decode()
            results: dict[str, str] = json.loads(output)
            assert (process.returncode == 0) == (set(results.values()) == {"pass"})
            return results

    results = run(scenario())
    assert {name: result for name, result in results.items() if result != "pass"} == {}
    assert len(results) > 20
