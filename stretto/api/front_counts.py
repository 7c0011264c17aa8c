"""What a front end counts itself, as it goes to the process that is scraped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from stretto.api.errors import Reason

MOST = 2**53  # what a metric can say exactly
REASON_WORDS = frozenset(reason.word for reason in Reason)


def _bounded(count: int) -> int:
    return min(max(count, 0), MOST)


@dataclass(frozen=True)
class FrontCounts:
    """Since its process began. `lag` is a histogram of how long its loop was held, by bucket, and `lag_sum` in ns."""

    requests_open: int = 0
    connections: int = 0  # of HTTP
    bytes_in_flight: int = 0
    bytes_in_flight_limit: int = 0
    bodies_given_up: int = 0
    log_lines_lost: int = 0
    spans_made: int = 0
    spans_sent: int = 0
    lag_ns: int = 0  # that planners should reckon with
    lag_sum: int = 0
    lag: tuple[int, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)  # requests that became no query, by reason
    restarts: int = 0  # of this front end, as its server counts them
    is_listening: bool = False

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> FrontCounts:
        """What is not there, or makes no sense, is 0."""
        whole: dict[str, Any] = {
            each.name: _bounded(content[each.name])
            for each in fields(FrontCounts)
            if each.type == "int" and isinstance(content.get(each.name), int)
        }
        lag, refused = content.get("lag"), content.get("refused")
        return FrontCounts(
            **whole,
            lag=tuple(map(_bounded, lag))
            if isinstance(lag, list) and all(isinstance(each, int) for each in lag)
            else (),
            refused=(
                {
                    reason: _bounded(count)
                    for reason, count in refused.items()
                    if reason in REASON_WORDS and isinstance(count, int)
                }
                if isinstance(refused, dict)
                else {}
            ),
        )
