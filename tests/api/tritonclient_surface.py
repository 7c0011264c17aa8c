"""Every public method of NVIDIA's four clients (HTTP and gRPC, each blocking and asyncio), on a server's one address.

A program, not a test module: tritonclient brings its own definition of the protocol, and a process has room for one.

    python tritonclient_surface.py --client grpc.aio --inference HOST:PORT --management HOST:PORT --application fashion

The server must allow shared memory. It needs tritonclient[http,grpc] and prints one line of JSON,
{check: "pass" or what went wrong}.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import os
import queue
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import tritonclient.utils.shared_memory as memory
from tritonclient._plugin import InferenceServerClientPlugin
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

PATIENCE_S = 30.0
ROWS = 2
OUT = 65_536  # where outputs go in the segment
SEGMENT_BYTES = 2 * OUT
FORBIDDEN = ("403", "StatusCode.PERMISSION_DENIED")
INVALID = ("400", "StatusCode.INVALID_ARGUMENT")
MISSING = ("404", "StatusCode.NOT_FOUND")
Check = Callable[["Surface"], Awaitable[None]]
checks: dict[str, tuple[str, Check]] = {}  # by name, with the protocol that it is for; "": both


class Token(InferenceServerClientPlugin):
    """Adds the token to every call, and counts them."""

    def __init__(self, headers: dict[str, str]):
        self.headers, self.count = headers, 0

    def __call__(self, request: Any) -> None:
        self.count += 1
        request.headers.update(self.headers)


class Surface:
    """One kind of client, and what was called of it. Management's address answers everything."""

    def __init__(self, arguments: argparse.Namespace):
        self.kind = arguments.client
        self.is_grpc = self.kind.startswith("grpc")
        self.triton = importlib.import_module(f"tritonclient.{self.kind}")
        self.client = self.triton.InferenceServerClient(arguments.management)
        self.inference = self.triton.InferenceServerClient(arguments.inference)
        self.url = f"http://{arguments.management}"
        self.token, self.application, self.traces = arguments.token, arguments.application, arguments.traces
        self.called: set[str] = set()

    async def prepare(self) -> None:
        model = await self.told("get_model_metadata", self.application)
        [takes] = model["inputs"]
        self.input, self.datatype = takes["name"], takes["datatype"]
        self.shape = [ROWS, *(max(int(extent), 1) for extent in takes["shape"][1:])]
        self.output, self.version = model["outputs"][0]["name"], model["versions"][0]
        dtype = triton_to_np_dtype(self.datatype)
        self.array = np.random.default_rng(7).random(self.shape).astype(dtype)

    @property
    def headers(self) -> dict[str, str]:
        """New ones for every call: a client writes its own into what it is given."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    async def call(self, name: str, *values: Any, on: Any = None, **options: Any) -> Any:
        self.called.add(name)
        result = getattr(on or self.client, name)(*values, **{"headers": self.headers, **options})
        return await result if inspect.isawaitable(result) else result

    async def told(self, name: str, *values: Any, **options: Any) -> Any:
        """What a call answers, as JSON."""
        return await self.call(name, *values, **options, **({"as_json": True} if self.is_grpc else {}))

    async def refusal(self, name: str, *values: Any, **options: Any) -> str:
        """The status that a call fails with."""
        try:
            await self.call(name, *values, **options)
        except InferenceServerException as error:
            assert error.message(), "the answer has no message"
            return str(error.status())
        raise AssertionError("the call was answered")

    def tensors(self) -> list[Any]:
        tensor = self.triton.InferInput(self.input, self.shape, self.datatype)
        tensor.set_data_from_numpy(self.array)
        return [tensor]

    async def infer(self, **options: Any) -> Any:
        inputs = options.pop("inputs", None) or self.tensors()
        return await self.call("infer", self.application, inputs, model_version=self.version, **options)

    async def expected(self) -> np.ndarray:
        return (await self.infer()).as_numpy(self.output)

    def same(self, found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def check(function: Check) -> Check:
    checks[function.__name__] = "", function
    return function


def check_only(protocol: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        checks[function.__name__] = protocol, function
        return function

    return add


@check
async def health(surface: Surface) -> None:
    assert await surface.call("is_server_live")
    assert await surface.call("is_server_ready")
    assert await surface.call("is_model_ready", surface.application)
    assert await surface.call("is_model_ready", surface.application, surface.version)
    assert not await surface.call("is_model_ready", "no-such-application")
    assert not await surface.call("is_model_ready", surface.application, "no-such-variant")


@check
async def documents(surface: Surface) -> None:
    server = await surface.told("get_server_metadata")
    assert {"system_shared_memory", "logging", "trace", "classification"} <= set(server["extensions"]), server
    model = await surface.told("get_model_metadata", surface.application)
    assert model["name"] == surface.application and surface.version in model["versions"]
    config = await surface.told("get_model_config", surface.application)
    config = config.get("config", config)
    assert config["max_batch_size"] > 0 and config["input"][0]["name"] == surface.input
    await surface.infer()
    statistics = await surface.told("get_inference_statistics", surface.application)
    assert sum(int(each.get("inference_count", 0)) for each in statistics["model_stats"]) > 0
    every = await surface.told("get_inference_statistics")
    assert len(every["model_stats"]) >= len(statistics["model_stats"])


@check
async def repository(surface: Surface) -> None:
    async def states() -> set[str]:
        found = await surface.told("get_model_repository_index")
        models = found["models"] if surface.is_grpc else found
        return {model["state"] for model in models if model["name"] == surface.application}

    assert "READY" in await states()
    await surface.call("unload_model", surface.application)
    assert "READY" not in await states()
    await surface.call("load_model", surface.application)
    assert "READY" in await states()
    assert await surface.refusal("unload_model", surface.application, on=surface.inference) in FORBIDDEN
    assert await surface.refusal("load_model", "no-such-application") in MISSING


@check
async def log_settings(surface: Surface) -> None:
    def plain(found: Any) -> dict[str, Any]:
        if not surface.is_grpc:
            return dict(found)
        return {key: next(iter(value.values()), None) for key, value in found["settings"].items()}

    before = plain(await surface.told("get_log_settings"))
    assert set(before) >= {"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"}
    wanted = {"log_info": True, "log_warning": True, "log_verbose_level": 1}
    assert plain(await surface.told("update_log_settings", wanted))["log_verbose_level"] == 1
    assert plain(await surface.told("get_log_settings"))["log_verbose_level"] == 1
    names = ("log_info", "log_warning", "log_verbose_level")
    after = plain(await surface.told("update_log_settings", {name: before[name] for name in names}))
    assert after == before, after
    assert await surface.refusal("update_log_settings", {"log_file": "elsewhere"}) in INVALID
    assert await surface.refusal("update_log_settings", {"log_info": True}, on=surface.inference) in FORBIDDEN
    assert plain(await surface.told("get_log_settings", on=surface.inference)) == before


@check
async def trace_settings(surface: Surface) -> None:
    def plain(found: Any) -> dict[str, list[str]]:
        pairs = found["settings"].items() if surface.is_grpc else found.items()
        values = {key: value.get("value", []) if surface.is_grpc else value for key, value in pairs}
        return {key: value if isinstance(value, list) else [value] for key, value in values.items()}

    before = plain(await surface.told("get_trace_settings"))
    assert before["trace_level"] == (["TIMESTAMPS"] if surface.traces else ["OFF"])
    assert plain(await surface.told("get_trace_settings", surface.application)) == before
    same = {"trace_level": before["trace_level"], "trace_rate": None}
    assert plain(await surface.told("update_trace_settings", settings=same)) == before
    if surface.traces:
        changed = await surface.told("update_trace_settings", surface.application, {"trace_rate": "3"})
        assert plain(changed)["trace_rate"] == ["3"]
        again = await surface.told("update_trace_settings", surface.application, {"trace_rate": None})
        assert plain(again) == before
    else:
        assert await surface.refusal("update_trace_settings", settings={"trace_rate": "3"}) in INVALID
    assert await surface.refusal("update_trace_settings", settings={"trace_file": "elsewhere"}) in INVALID
    assert await surface.refusal("update_trace_settings", settings=same, on=surface.inference) in FORBIDDEN
    assert await surface.refusal("get_trace_settings", "no-such-application") in MISSING


@check
async def inference(surface: Surface) -> None:
    result = await surface.infer(request_id="one")
    response = result.get_response()
    assert (response.id if surface.is_grpc else response["id"]) == "one"
    assert result.as_numpy(surface.output).shape[0] == ROWS
    assert result.get_output(surface.output) is not None
    best = await surface.infer(outputs=[surface.triton.InferRequestedOutput(surface.output, class_count=2)])
    assert best.as_numpy(surface.output).shape == (ROWS, 2)
    text = best.as_numpy(surface.output)[0][0]
    expected = (await surface.expected())[0]
    assert int(text.decode().split(":")[1]) == expected.argmax()


@check
async def several_at_once(surface: Surface) -> None:
    """`async_infer` of the blocking clients; the others have tasks."""
    expected = await surface.expected()
    if surface.kind == "http":
        waiting = [
            await surface.call("async_infer", surface.application, surface.tensors(), model_version=surface.version)
            for _ in range(4)
        ]
        results = [each.get_result(timeout=PATIENCE_S) for each in waiting]
    elif surface.kind == "grpc":
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for _ in range(4):
            await surface.call(
                "async_infer",
                surface.application,
                surface.tensors(),
                lambda result, error: answers.put((result, error)),
                model_version=surface.version,
            )
        pairs = [answers.get(timeout=PATIENCE_S) for _ in range(4)]
        assert [error for _, error in pairs] == [None] * 4
        results = [result for result, _ in pairs]
    else:
        results = await asyncio.gather(*(surface.infer() for _ in range(4)))
    for result in results:
        surface.same(result.as_numpy(surface.output), expected)


@check_only("grpc")
async def streams(surface: Surface) -> None:
    expected = await surface.expected()
    if surface.kind == "grpc":
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        await surface.call("start_stream", lambda result, error: answers.put((result, error)))
        for _ in range(4):
            surface.client.async_stream_infer(
                surface.application, surface.tensors(), model_version=surface.version, timeout=0
            )
        surface.called.add("async_stream_infer")
        for _ in range(4):
            result, error = answers.get(timeout=PATIENCE_S)
            assert error is None, error
            surface.same(result.as_numpy(surface.output), expected)
        surface.client.stop_stream()
        surface.called.add("stop_stream")
    else:

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for _ in range(4):
                yield {
                    "model_name": surface.application,
                    "inputs": surface.tensors(),
                    "model_version": surface.version,
                }

        count = 0
        surface.called.add("stream_infer")
        async for result, error in surface.client.stream_infer(requests(), headers=surface.headers):
            assert error is None, error
            surface.same(result.as_numpy(surface.output), expected)
            count += 1
        assert count == 4


@check_only("http")
async def bodies_made_by_hand(surface: Surface) -> None:
    body, length = surface.triton.InferenceServerClient.generate_request_body(surface.tensors())
    headers = {**surface.headers, "Inference-Header-Content-Length": str(length)}
    url = f"{surface.url}/v2/models/{surface.application}/versions/{surface.version}/infer"
    request = urllib.request.Request(url, bytes(body), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        content, given = response.read(), response.headers.get("Inference-Header-Content-Length")
    parse = surface.triton.InferenceServerClient.parse_response_body
    result = parse(content, header_length=None if given is None else int(given))
    surface.same(result.as_numpy(surface.output), await surface.expected())
    surface.called |= {"generate_request_body", "parse_response_body"}


@check
async def plugins(surface: Surface) -> None:
    plugin = Token(surface.headers)
    surface.client.register_plugin(plugin)
    try:
        assert surface.client.plugin() is plugin
        assert await surface.call("get_server_metadata", headers=None)
        assert plugin.count == 1
    finally:
        surface.client.unregister_plugin()
    surface.called |= {"register_plugin", "plugin", "unregister_plugin"}


def regions_in(surface: Surface, found: Any) -> dict[str, dict[str, Any]]:
    if surface.is_grpc:
        return dict(found.get("regions", {}))
    return {region["name"]: region for region in found}


@check
async def shared_memory(surface: Surface) -> None:
    expected, key = await surface.expected(), f"/stretto-{os.getpid()}"
    segment = memory.create_shared_memory_region("frames", key, SEGMENT_BYTES)
    try:
        memory.set_shared_memory_region(segment, [surface.array])
        for on in (surface.client, surface.inference):
            await surface.call("register_system_shared_memory", "frames", key, OUT, on=on)
            await surface.call("register_system_shared_memory", "answers", key, OUT, offset=OUT, on=on)
            assert await surface.refusal("register_system_shared_memory", "frames", key, OUT, on=on) in INVALID
            found = regions_in(surface, await surface.told("get_system_shared_memory_status", on=on))
            assert set(found) == {"frames", "answers"}
            assert (int(found["answers"]["offset"]), int(found["answers"]["byte_size"])) == (OUT, OUT)
            one = regions_in(surface, await surface.told("get_system_shared_memory_status", "frames", on=on))
            assert list(one) == ["frames"] and one["frames"]["key"] == key
            await infer_shared(surface, on, segment, expected)
            await surface.call("unregister_system_shared_memory", "frames", on=on)
            assert await surface.refusal("get_system_shared_memory_status", "frames", on=on) in MISSING
            await surface.call("unregister_system_shared_memory", on=on)
            assert not regions_in(surface, await surface.told("get_system_shared_memory_status", on=on))
        assert await surface.refusal("register_system_shared_memory", "r", "no-such-segment", 8) in INVALID
        assert await surface.refusal("register_system_shared_memory", "r", key, SEGMENT_BYTES * 1000) in INVALID
    finally:
        memory.destroy_shared_memory_region(segment)


async def infer_shared(surface: Surface, on: Any, segment: Any, expected: np.ndarray) -> None:
    tensor = surface.triton.InferInput(surface.input, surface.shape, surface.datatype)
    tensor.set_shared_memory("frames", surface.array.nbytes)
    wanted = surface.triton.InferRequestedOutput(surface.output)
    wanted.set_shared_memory("answers", expected.nbytes, offset=256)
    result = await surface.infer(inputs=[tensor], outputs=[wanted], on=on)
    told = result.get_output(surface.output)
    assert list(told.shape if surface.is_grpc else told["shape"]) == list(expected.shape)
    found = memory.get_contents_as_numpy(segment, expected.dtype, expected.shape, offset=OUT + 256)
    surface.same(found, expected)
    del found
    plain = await surface.infer(inputs=[tensor], on=on)
    surface.same(plain.as_numpy(surface.output), expected)


@check
async def cuda_shared_memory(surface: Surface) -> None:
    assert not regions_in(surface, await surface.told("get_cuda_shared_memory_status"))
    assert await surface.refusal("register_cuda_shared_memory", "r", b"AAAA".decode(), 0, 8) in INVALID
    await surface.call("unregister_cuda_shared_memory")
    await surface.call("unregister_cuda_shared_memory", "r")


async def nothing_is_left_out(surface: Surface) -> None:
    surface.called.add("close")
    public = {name for name, _ in inspect.getmembers(surface.client, callable) if not name.startswith("_")}
    assert not public - surface.called, sorted(public - surface.called)


async def run(arguments: argparse.Namespace) -> dict[str, str]:
    surface = Surface(arguments)
    await surface.prepare()
    results: dict[str, str] = {}
    chosen = [function for protocol, function in checks.values() if surface.kind.startswith(protocol)]
    for function in [*chosen, nothing_is_left_out]:
        try:
            await function(surface)
            results[function.__name__] = "pass"
        except Exception as error:
            results[function.__name__] = f"{type(error).__name__}: {error}"[:500]
    for client in (surface.client, surface.inference):
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed
    return results | {"calls": str(len(surface.called))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True, choices=["http", "http.aio", "grpc", "grpc.aio"])
    parser.add_argument("--inference", required=True, metavar="HOST:PORT")
    parser.add_argument("--management", required=True, metavar="HOST:PORT")
    parser.add_argument("--application", required=True)
    parser.add_argument("--token", help="sent as a bearer token with every call")
    parser.add_argument("--traces", action="store_true", help="the server makes spans")
    results = asyncio.run(run(parser.parse_args()))
    print(json.dumps(results))
    return 0 if {result for name, result in results.items() if name != "calls"} == {"pass"} else 1


if __name__ == "__main__":
    sys.exit(main())
