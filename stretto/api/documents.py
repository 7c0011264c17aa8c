"""What the protocol tells about a server and its applications: metadata, configuration, statistics and the index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stretto import __version__
from stretto.api.datatypes import DATATYPE_OF
from stretto.api.network import told_parameters
from stretto.core.advice import JudgedFleet, Scaling
from stretto.core.partition import partition_document
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.core.snapshot import Distribution, Snapshot, VariantState
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.live.quarantine import label_of
from stretto.repository.images import RAW, can_decode, sizes_text

if TYPE_CHECKING:
    from stretto.live.moves import Moves
    from stretto.live.service import Service
    from stretto.repository.application import ApplicationFiles
    from stretto.repository.tensors import InputTensor
    from stretto.repository.variant import VariantFiles

SERVER_NAME = "stretto"
EXTENSIONS = (
    *("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics"),
    *("parameters", "schedule_policy", "logging", "trace"),
)
SHARED_MEMORY = "system_shared_memory"
PLATFORMS = {"onnx": "onnxruntime_onnx", "torch": "pytorch", "callable": "python"}
NOTHING = {"count": 0, "ns": 0}


def welcome(is_management: bool) -> dict[str, Any]:
    """Where to go from the root of a listener."""
    calls = {
        "server": "GET /v2",
        "ready": "GET /v2/health/ready",
        "application": "GET /v2/models/APPLICATION",
        "inference": "POST /v2/models/APPLICATION/infer",
        "feedback": "POST /v2/models/APPLICATION/feedback",
    }
    if is_management:
        calls |= {"applications": "POST /v2/repository/index", "workers": "GET /v2/fleet", "metrics": "GET /metrics"}
    return {
        "name": "stretto",
        "protocol": "Open Inference Protocol v2",
        "calls": calls,
        "documentation": "docs/serving.md of Stretto; https://kserve.github.io/website/ for the protocol",
    }


def server_metadata(has_shared_memory: bool) -> dict[str, Any]:
    extensions = [*EXTENSIONS, *([SHARED_MEMORY] if has_shared_memory else [])]
    return {"name": SERVER_NAME, "version": __version__, "extensions": extensions}


def model_metadata(files: ApplicationFiles, versions: list[str]) -> dict[str, Any]:
    takes, gives = files.input, files.output
    return {
        "name": files.name,
        "versions": versions,
        "platform": _platform(files.variants),
        "inputs": [_input(takes)],
        "outputs": [{"name": gives.name, "datatype": DATATYPE_OF[gives.dtype], "shape": [-1, *gives.shape]}],
    }


def _input(takes: InputTensor) -> dict[str, Any]:
    """What clients may choose among stands under its parameters; there is nothing where they have no choice."""
    description: dict[str, Any] = {
        "name": takes.name,
        "datatype": DATATYPE_OF[takes.dtype],
        "shape": [-1, *_extents(takes)],
    }
    parameters = image_parameters(takes)
    return description | {"parameters": parameters} if parameters else description


def _extents(takes: InputTensor) -> list[int]:
    """-1 along axes that differ among the sizes."""
    return [extents[0] if len(set(extents)) == 1 else -1 for extents in zip(*takes.shapes, strict=True)]


def image_parameters(takes: InputTensor) -> dict[str, str | float]:
    """Sizes as HEIGHTxWIDTH, encodings by name, and what a byte is divided by."""
    parameters: dict[str, str | float] = {}
    if takes.sizes:
        parameters["sizes"] = sizes_text(takes.sizes)
    if takes.divide_by is not None:
        encodings = takes.encodings if can_decode() else (RAW,)
        parameters |= {"encodings": ",".join(encodings), "divide_by": takes.divide_by}
    return parameters


def _platform(variants: tuple[VariantFiles, ...]) -> str:
    backends = {variant.backend for variant in variants}
    return PLATFORMS.get(backends.pop(), "") if len(backends) == 1 else "ensemble"


def model_config(files: ApplicationFiles, versions: list[str]) -> dict[str, Any]:
    """In the layout that Triton's clients read; what is Stretto's own stands under parameters."""
    takes, gives = files.input, files.output
    output: dict[str, Any] = {"name": gives.name, "data_type": _type(gives.dtype), "dims": list(gives.shape)}
    if files.labels:
        output["label_filename"] = "labels.txt"
    return {
        "name": files.name,
        "platform": _platform(files.variants),
        "backend": "stretto",
        "max_batch_size": files.limits.max_batch,
        "version_policy": {"specific": {"versions": []}},
        "input": [{"name": takes.name, "data_type": _type(takes.dtype), "dims": _extents(takes)}],
        "output": [output],
        "dynamic_batching": {"max_queue_delay_microseconds": round(files.slo_ms * 1e3)},
        "instance_group": [],
        "parameters": {
            "slo_ms": {"string_value": f"{files.slo_ms:g}"},
            "penalty": {"string_value": files.penalty.name.lower()},
            "variants": {"string_value": ",".join(versions)},
            "ladder": {"string_value": ",".join(files.ladder)},
            "accuracies": {"string_value": ",".join(map(_accuracy, files.variants))},
            "max_body_bytes": {"string_value": str(files.limits.max_body_bytes)},
            **{key: {"string_value": _plain(value)} for key, value in image_parameters(takes).items()},
        },
    }


def _accuracy(variant: VariantFiles) -> str:
    """What answers state, and what variant.toml states beside it where that differs."""
    if not variant.has_accuracy:
        return f"{variant.name}=unknown"
    stated = variant.stated_accuracy
    beside = "" if stated in (None, variant.accuracy) else f" (stated {stated:g})"
    return f"{variant.name}={variant.accuracy:g}{beside}"


def accuracy_told(variant: VariantFiles) -> str:
    """For the index: nothing where the accuracy is known."""
    return "" if variant.has_accuracy else f"its accuracy is not known, for {variant.unmeasured}"


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _type(dtype: str) -> str:
    return "TYPE_" + DATATYPE_OF[dtype].replace("BYTES", "STRING")


def statistics(now: Snapshot, application: str | None, version: str) -> dict[str, Any]:
    """Per variant: those that ever ran, and those served now."""
    waits = {state.name: state.stages.get("queue") for state in now.applications}
    return {
        "model_stats": [
            _variant_statistics(state, waits.get(state.application))
            for state in now.variants
            if application in (None, state.application) and version in ("", state.name)
        ]
    }


def _variant_statistics(state: VariantState, wait: Distribution | None) -> dict[str, Any]:
    queued_ns = 0 if wait is None else round(wait.sum * state.queries / max(1, wait.total))  # not kept by variant
    return {
        "name": state.application,
        "version": state.name,
        "last_inference": state.last_ended_ms,
        "inference_count": state.queries,
        "execution_count": state.batches,
        "inference_stats": {
            "success": {"count": state.queries, "ns": state.run_ns + queued_ns},
            "fail": {"count": state.failed, "ns": state.failed_ns},
            "queue": {"count": state.queries, "ns": queued_ns},
            "compute_input": dict(NOTHING),
            "compute_infer": {"count": state.queries, "ns": state.run_ns},
            "compute_output": dict(NOTHING),
            "cache_hit": dict(NOTHING),
            "cache_miss": dict(NOTHING),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": dict(NOTHING),
                "compute_infer": {"count": batches, "ns": run_ns},
                "compute_output": dict(NOTHING),
            }
            for size, batches, run_ns in state.sizes
        ],
    }


def summed_statistics(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Of one variant, as two schedulers counted what each of them served."""
    total: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, Mapping):
            total[key] = summed_statistics(value, second[key])
        elif isinstance(value, list):  # of batches, by size
            sizes = {each["batch_size"]: each for each in value}
            for each in second[key]:
                size = each["batch_size"]
                sizes[size] = summed_statistics(sizes[size], each) if size in sizes else each
            total[key] = [sizes[size] for size in sorted(sizes)]
        elif key == "last_inference":
            total[key] = max(value, second[key])
        else:
            total[key] = value if key in ("name", "version", "batch_size") else value + second[key]
    return total


def partition(service: Service, moves: Moves) -> dict[str, Any]:
    """The partition in force; what is served here and what becomes of it; and what was ever asked here."""
    share, waiting = moves.share, moves.waiting()
    totals = service.engine.books.totals(service.engine.generations())
    rooms = [worker.memory_bytes for worker in service.engine.generation.deployment.workers]
    serves = {
        name: {
            "is_ready": name in service.files and service.is_ready(name),
            "is_leaving": name in waiting,
            "waits_for": waiting.get(name, []),
        }
        for name in sorted(service.offer.share or ())
    }
    return partition_document(share.partition) | {
        "cluster" if share.is_cluster else "sub_cluster": share.number,
        "parts": moves.parts,
        "serves": serves,
        "is_settled": not waiting and all(serves[name]["is_ready"] for name in share.applications),
        "problem": moves.problem,
        "submitted": {name: count for name, (count, _) in totals.items()},
        "worker_bytes": None if min(rooms) == UNLIMITED_MEMORY else min(rooms),
    }


def fleet(now: Snapshot) -> dict[str, Any]:
    """The slots, and how many workers of each kind are there; where it is scaled, how many there should be."""
    scaled = {} if now.scaling is None else {"autoscale": _scaling(now.scaling, now.now_ns)}
    return {
        "present": now.fleet.counts(),
        **scaled,
        "slots": [
            {"name": slot.name, "kind": slot.kind, "present": slot.is_present, "busy_s": slot.busy_ns / 1e9}
            for slot in now.slots
        ],
    }


def _scaling(scaling: Scaling, now_ns: int) -> dict[str, Any]:
    advice = scaling.advice
    return {
        "actuator": scaling.actuator,
        "bounds": {kind: {"min": least, "max": most} for kind, (least, most) in scaling.bounds.items()},
        "wanted": dict(advice.wanted),
        "starting": advice.starting,
        "cost_per_hour": round(advice.cost, 6),
        "bad_rate": round(advice.bad_rate, 6),
        "idle_share": round(advice.idle_share, 6),
        "reason": advice.reason,
        "age_s": round((now_ns - advice.now_ns) / NS_PER_S, 3),
        "changes": scaling.changes,
        "failures": scaling.failures,
        "problem": scaling.problem,
    } | ({} if scaling.judged is None else {"judged": _judged_fleet(scaling.judged, now_ns)})


def _judged_fleet(judged: JudgedFleet, now_ns: int) -> dict[str, Any]:
    return {
        "wanted": dict(judged.wanted),
        "is_enough": judged.is_enough,
        "cost_per_hour": round(judged.cost, 6),
        "queries_per_s": round(judged.load, 3),
        "not_on_time": round(judged.late, 6),
        "accuracy": None if judged.accuracy is None else round(judged.accuracy, 6),
        "candidate": judged.candidate,
        "age_s": round((now_ns - judged.now_ns) / NS_PER_S, 3),
    }


def clients(now: Snapshot) -> dict[str, Any]:
    """Who asked lately, the latest first: what was measured of each, and what it was told to send."""
    return {
        "count": now.client_count,
        "clients": [
            {
                "client_id": client.identity,
                "application": client.application,
                "idle_ms": (now.now_ns - client.seen_ns) / NS_PER_MS,
                "rate": round(client.rate, 3),
                "said_rate": client.said_rate,
                "slo_ms": None if client.slo_ns is None else client.slo_ns / NS_PER_MS,
                "bandwidth": client.network.bytes_per_s,
                "rtt_ms": None if client.network.delay_ns is None else client.network.delay_ns / NS_PER_MS,
                "frame_ratio": round(client.frame_ratio, 3),
                **told_parameters(client.told),
            }
            for client in now.clients
        ],
    }


def index(service: Service, ready_only: bool) -> list[dict[str, Any]]:
    """One entry per variant, as the protocol's index lists versions, with the reason why one is not served."""
    rows: list[dict[str, Any]] = []
    now_ns, offer = service.engine.clock(), service.offer
    set_aside = {label_of(key): entry.told(now_ns) for key, entry in offer.quarantine.entries.items()}
    on_probation = {label_of(key) for key in service.admission.trials}
    for name, files in offer.known.items():
        for variant in files.variants:
            if not variant.enabled:
                continue
            label = f"{name}/{variant.name}"
            is_ready = service.is_ready(name, variant.name)
            reason = set_aside.get(label) or ("it is on probation" if label in on_probation else "")
            reason = reason or offer.why_not(name, variant.name)
            reason = accuracy_told(variant) if is_ready else reason
            if is_ready or not ready_only:
                state = "READY" if is_ready else "UNAVAILABLE"
                rows.append({"name": name, "version": variant.name, "state": state, "reason": reason})
    for name, reason in offer.unreadable.items():
        if name not in offer.known:
            if not ready_only:
                rows.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
            continue
        for row in rows:
            if row["name"] == name:
                row["reason"] = f"served as it was read before, for it cannot be read now: {reason}"
    return rows
