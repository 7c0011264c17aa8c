"""A small data plane for the translator's tests. It really computes, and it can be held, failed and looked at.

`mirror` turns every input round along its last axis, whatever its type; `classes` multiplies x with a matrix.
Parameters of a request steer it: hold = NAME waits for that gate, fail = REASON raises it, crash raises what is no
ApiError, leak raises a CancelledError that nobody asked for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.api.budget import Budget
from stretto.api.datatypes import NUMPY_OF
from stretto.api.errors import ApiError, Reason, bad_request, not_found
from stretto.api.limits import Limits
from stretto.api.messages import InferRequest, InferResponse, InputTensor, OutputTensor
from stretto.api.settings import log_settings, trace_settings, update_log_settings, update_trace_settings
from stretto.api.shared_memory import Regions, put

VARIANTS = ("fast", "exact")
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = ("cat", "dog", "bird")
DURATION = {"count": 2, "ns": 3_000_000}
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@dataclass(frozen=True)
class Takes:
    max_body_bytes: int = 1_000_000
    max_batch: int = 8
    max_elements: int = 10_000


TAKES = Takes()


class MirrorPlane:
    """Implements ServedPlane of stretto.api.grpc.served_plane, and is its own ServedControl."""

    def __init__(self) -> None:
        self.budget = Budget(Limits().budget_bytes)
        self.regions = Regions(Limits(), self.budget, is_allowed=True)
        self.is_ready = True
        self.loaded = {"mirror", "classes"}
        self.seen: list[InferRequest] = []
        self.running: set[str] = set()
        self.most_running = 0
        self.withdrawn: list[str] = []
        self.refused: list[ApiError] = []
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.changed = asyncio.Condition()

    @property
    def control(self) -> MirrorPlane:
        return self

    def live(self) -> bool:
        return True

    def ready(self, application: str | None = None, version: str = "") -> bool:
        if application is None:
            return self.is_ready
        self.check(application, version)
        return application in self.loaded

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "mirror-server", "version": "1.2.3", "extensions": ["classification", "statistics"]}

    def model_metadata(self, application: str, version: str = "") -> dict[str, Any]:
        self.check(application, version)
        return {
            "name": application,
            "versions": list(VARIANTS),
            "platform": "numpy",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
        }

    def model_config(self, application: str, version: str = "") -> dict[str, Any]:
        self.check(application, version)
        return {
            "name": application,
            "platform": "numpy",
            "backend": "stretto",
            "max_batch_size": 8,
            "version_policy": {"all": {}},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
            "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}],
            "dynamic_batching": {"max_queue_delay_microseconds": 1_000, "preferred_batch_size": [4, 8]},
            "parameters": {"slo_ms": {"string_value": "50"}},
            "not_of_the_protocol": {"left": "out"},
        }

    async def refresh(self) -> None: ...

    def statistics(self, application: str | None = None, version: str = "") -> dict[str, Any]:
        if application is not None:
            self.check(application, version)
        names = sorted(self.loaded) if application is None else [application]
        batch = {"batch_size": 4, **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), DURATION)}
        return {
            "model_stats": [
                {
                    "name": name,
                    "version": variant,
                    "last_inference": 1_700_000_000_000,
                    "inference_count": 2**40,
                    "execution_count": 5,
                    "inference_stats": dict.fromkeys(KINDS, DURATION),
                    "batch_stats": [batch],
                }
                for name in names
                for variant in VARIANTS
                if version in ("", variant)
            ]
        }

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]:
        states = {name: "READY" if name in self.loaded else "UNAVAILABLE" for name in ("classes", "mirror")}
        return [
            {"name": name, "version": "fast", "state": state, "reason": "" if state == "READY" else "unloaded"}
            for name, state in states.items()
            if state == "READY" or not ready_only
        ]

    async def load(self, application: str) -> None:
        self.check(application)
        self.loaded.add(application)

    async def unload(self, application: str) -> None:
        self.check(application)
        self.loaded.discard(application)

    def log_settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return update_log_settings(changes) if changes else log_settings()

    def trace_settings(self, application: str = "", changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if application:
            self.check(application)
        return update_trace_settings(None, changes, application) if changes else trace_settings(None, application)

    def count_refusal(self, error: ApiError) -> ApiError:
        if not error.is_counted:
            error.is_counted = True
            self.refused.append(error)
        return error

    async def infer(self, request: InferRequest) -> InferResponse:
        self.check(request.application, request.version)
        self.regions.fetch(request.inputs, TAKES)
        self.seen.append(request)
        self.running.add(request.id)
        self.most_running = max(self.most_running, len(self.running))
        await self.tell()
        try:
            await self.steer(request.parameters)
            response = self.computed(request)
            for wanted in request.outputs:
                if wanted.shared is not None:
                    region = self.regions.target(wanted.shared, 0)
                    put(region, wanted.shared, next(each for each in response.outputs if each.name == wanted.name))
            return response
        except asyncio.CancelledError:
            self.withdrawn.append(request.id)
            raise
        finally:
            self.running.discard(request.id)
            await self.tell()

    async def steer(self, parameters: dict[str, Any]) -> None:
        if "hold" in parameters:
            await self.gates[parameters["hold"]].wait()
        if "fail" in parameters:
            raise ApiError(Reason[parameters["fail"]], f"asked to fail: {parameters['fail']}", 1.5)
        if "crash" in parameters:
            raise KeyError("/a/secret/path")
        if "leak" in parameters:
            raise asyncio.CancelledError

    def computed(self, request: InferRequest) -> InferResponse:
        if request.application == "classes":
            outputs = [self.classify(request)]
        else:
            outputs = [mirrored(tensor) for tensor in request.inputs]
            names = {output.name for output in request.outputs}
            outputs = [output for output in outputs if not names or output.name in names]
        version = request.version or "exact"
        parameters = {"variant": version, "batch_size": len(request.inputs), "expected_accuracy": 0.5}
        return InferResponse(request.application, version, request.id, outputs, parameters)

    def classify(self, request: InferRequest) -> OutputTensor:
        if [tensor.name for tensor in request.inputs] != ["x"]:
            raise bad_request("classes takes one input, x")
        x = request.inputs[0].array
        if x.ndim != 2 or x.shape[1] != 4 or x.dtype != np.float32:
            raise bad_request(f"x has the shape {list(x.shape)}; it should be [-1, 4] of FP32")
        scores = x @ WEIGHTS
        count = request.outputs[0].classification if request.outputs else 0
        if not count:
            return OutputTensor("scores", "FP32", scores)
        rows = [[f"{row[k]:f}:{k}:{LABELS[k]}".encode() for k in np.argsort(-row)[:count]] for row in scores]
        return OutputTensor("scores", "BYTES", np.array(rows, object))

    def check(self, application: str, version: str = "") -> None:
        if application not in ("mirror", "classes"):
            raise not_found(f"there is no application {application[:50]!r}")
        if version not in ("", *VARIANTS):
            raise not_found(f"{application} has no variant {version[:50]!r}")

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until_running(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.running) == count)

    async def until_seen(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.seen) >= count)


def mirrored(tensor: InputTensor) -> OutputTensor:
    assert tensor.array.dtype == NUMPY_OF[tensor.datatype]
    assert tensor.array.flags.aligned
    return OutputTensor(tensor.name, tensor.datatype, tensor.array[..., ::-1] if tensor.array.ndim else tensor.array)
