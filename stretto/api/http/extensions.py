"""Addresses of Triton's extensions: shared memory, and settings of the log and of traces."""

from __future__ import annotations

from typing import Any

from stretto.api.errors import ApiError, Reason, not_found
from stretto.api.plane import Plane
from stretto.api.shared_memory import cuda_status, refuse_cuda

SYSTEM, CUDA = "systemsharedmemory", "cudasharedmemory"
ADDRESSES = frozenset({SYSTEM, CUDA, "logging", "trace"})  # the first part below /v2
NOTHING_THERE = "there is nothing at this address"
FOR_MANAGEMENT = "settings are changed at the management listener's own address"
Content = dict[str, Any]


def extension(plane: Plane, parts: list[str], content: Content | None, is_management: bool) -> Any:
    """The answer as JSON, None where it has no body. `content` is that of a POST; None: it is a GET."""
    if parts == ["logging"]:
        _check_change(content, is_management)
        return plane.control.log_settings(content)
    if parts == ["trace", "setting"]:
        return trace_setting(plane, "", content, is_management)
    if parts[0] not in (SYSTEM, CUDA) or not (len(parts) == 2 or (len(parts) == 4 and parts[1] == "region")):
        raise not_found(NOTHING_THERE)
    region, call = parts[2] if len(parts) == 4 else "", parts[-1]
    if len(parts) == 4 and not region:
        raise not_found("a region must be named")
    if call == "status":
        _allow(content is None, "GET")
        return plane.regions.status(region) if parts[0] == SYSTEM else cuda_status(region)
    if call not in ("register", "unregister") or (call == "register" and not region):
        raise not_found(NOTHING_THERE)
    _allow(content is not None, "POST")
    if parts[0] == CUDA:
        if call == "register":
            refuse_cuda()
    elif call == "unregister":
        plane.regions.unregister(region)
    else:
        said = content or {}
        plane.regions.register(region, said.get("key"), said.get("offset", 0), said.get("byte_size"))
    return None


def trace_setting(plane: Plane, application: str, content: Content | None, is_management: bool) -> Any:
    _check_change(content, is_management)
    return plane.control.trace_settings(application, content)


def _check_change(content: Content | None, is_management: bool) -> None:
    """To read them, clients may also send nothing."""
    if content and not is_management:
        raise ApiError(Reason.FORBIDDEN, FOR_MANAGEMENT)


def _allow(is_allowed: bool, method: str) -> None:
    if not is_allowed:
        raise ApiError(Reason.NOT_ALLOWED, f"this address takes {method}")
