"""Calls of Triton's extensions: shared memory, and settings of the log and of traces, each a call of the data plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from stretto.api.errors import ApiError, Reason
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.served_plane import ServedPlane
from stretto.api.shared_memory import cuda_status, refuse_cuda

FOR_MANAGEMENT = "settings are changed on the management listener's own address"


class Extensions:
    """Of one listener. `is_management`: settings can also be changed there."""

    def __init__(self, plane: ServedPlane, is_management: bool):
        self.plane = plane
        self.is_management = is_management

    def calls(self) -> dict[str, tuple[type[Message], Callable[[Any], Awaitable[Message]]]]:
        """By name: the message that a call takes, and what answers it."""
        return {
            "SystemSharedMemoryStatus": (protocol.SystemSharedMemoryStatusRequest, self.status),
            "SystemSharedMemoryRegister": (protocol.SystemSharedMemoryRegisterRequest, self.register),
            "SystemSharedMemoryUnregister": (protocol.SystemSharedMemoryUnregisterRequest, self.unregister),
            "CudaSharedMemoryStatus": (protocol.CudaSharedMemoryStatusRequest, self.cuda_status),
            "CudaSharedMemoryRegister": (protocol.CudaSharedMemoryRegisterRequest, self.cuda_register),
            "CudaSharedMemoryUnregister": (protocol.CudaSharedMemoryUnregisterRequest, self.cuda_unregister),
            "TraceSetting": (protocol.TraceSettingRequest, self.trace_setting),
            "LogSettings": (protocol.LogSettingsRequest, self.log_settings),
        }

    async def status(self, message: protocol.SystemSharedMemoryStatusRequest) -> Message:
        response = protocol.SystemSharedMemoryStatusResponse()
        for region in self.plane.regions.status(message.name):
            response.regions[region["name"]].CopyFrom(protocol.SystemSharedMemoryStatusResponse.RegionStatus(**region))
        return response

    async def register(self, message: protocol.SystemSharedMemoryRegisterRequest) -> Message:
        self.plane.regions.register(message.name, message.key, message.offset, message.byte_size)
        return protocol.SystemSharedMemoryRegisterResponse()

    async def unregister(self, message: protocol.SystemSharedMemoryUnregisterRequest) -> Message:
        self.plane.regions.unregister(message.name)
        return protocol.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(self, message: protocol.CudaSharedMemoryStatusRequest) -> Message:
        cuda_status(message.name)
        return protocol.CudaSharedMemoryStatusResponse()

    async def cuda_register(self, message: protocol.CudaSharedMemoryRegisterRequest) -> Message:
        refuse_cuda()
        return protocol.CudaSharedMemoryRegisterResponse()

    async def cuda_unregister(self, message: protocol.CudaSharedMemoryUnregisterRequest) -> Message:
        return protocol.CudaSharedMemoryUnregisterResponse()

    async def trace_setting(self, message: protocol.TraceSettingRequest) -> Message:
        """Without settings they are only read."""
        changes = {key: list(given.value) or None for key, given in message.settings.items()}
        self.hold_to_management(changes)
        response = protocol.TraceSettingResponse()
        for key, value in self.plane.control.trace_settings(message.model_name, changes).items():
            response.settings[key].value.extend(value if isinstance(value, list) else [value])
        return response

    async def log_settings(self, message: protocol.LogSettingsRequest) -> Message:
        """Without settings they are only read."""
        changes: dict[str, Any] = {}
        for key, given in message.settings.items():
            choice = given.WhichOneof("parameter_choice")
            changes[key] = None if choice is None else getattr(given, choice)
        self.hold_to_management(changes)
        response = protocol.LogSettingsResponse()
        for key, value in self.plane.control.log_settings(changes).items():
            if isinstance(value, bool):
                response.settings[key].bool_param = value
            elif isinstance(value, int):
                response.settings[key].uint32_param = value
            else:
                response.settings[key].string_param = value
        return response

    def hold_to_management(self, changes: dict[str, Any]) -> None:
        if changes and not self.is_management:
            raise ApiError(Reason.FORBIDDEN, FOR_MANAGEMENT)
