"""What a request asks besides its tensor, checked against its application.

Clients repeat themselves: what is said in the same bytes is checked once, and whoever says it again is taken by these
terms. They hold for the files that they were checked against, and for no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.api.inputs import number_in, slack_from, whole_in
from stretto.api.messages import InferRequest, Terms, WantedOutput
from stretto.api.network import Reported, reported
from stretto.core.profile import NS_PER_MS

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles

MAX_PRIORITY = 2**31 - 1


def read_terms(files: ApplicationFiles, request: InferRequest, wanted: WantedOutput) -> tuple[Terms, Reported]:
    """And what its client says of its network. ApiError where a parameter makes no sense."""
    parameters = request.parameters
    terms = Terms(
        files,
        request.version,
        wanted,
        slack_from(parameters, round(files.slo_ms * NS_PER_MS)),
        whole_in(parameters, "priority", 0, MAX_PRIORITY, 0),
        number_in(parameters, "min_accuracy", 0.0, 1.0, 0.0),
    )
    return terms, reported(parameters)
