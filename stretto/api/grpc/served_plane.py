"""What the translator needs of the data plane and the control plane. It holds nothing and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stretto.api.budget import Budget
from stretto.api.errors import ApiError
from stretto.api.messages import InferRequest, InferResponse
from stretto.api.shared_memory import Regions


class ServedControl(Protocol):
    """What is said of the server, and changed. Every method may raise ApiError."""

    def server_metadata(self) -> dict[str, Any]: ...

    def model_metadata(self, application: str, version: str = "") -> dict[str, Any]: ...

    def model_config(self, application: str, version: str = "") -> dict[str, Any]: ...

    async def refresh(self) -> None:
        """Before statistics."""
        ...

    def statistics(self, application: str | None = None, version: str = "") -> dict[str, Any]: ...

    def index(self, ready_only: bool = False) -> list[dict[str, Any]]: ...

    async def load(self, application: str) -> None: ...

    async def unload(self, application: str) -> None: ...

    def log_settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]: ...

    def trace_settings(self, application: str = "", changes: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


class ServedPlane(Protocol):
    """Every method may raise ApiError. Cancelling the task that awaits `infer` withdraws the query."""

    budget: Budget
    regions: Regions

    @property
    def control(self) -> ServedControl: ...

    def live(self) -> bool: ...

    def ready(self, application: str | None = None, version: str = "") -> bool: ...

    def count_refusal(self, error: ApiError) -> ApiError:
        """For a request that was refused before the plane saw it; returns the error."""
        ...

    async def infer(self, request: InferRequest) -> InferResponse: ...
