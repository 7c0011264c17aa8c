"""What failed is in the log: every failure has a line of its minute, and a flood of them is no flood of lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.core.outcome import Outcome
from stretto.live.engine import STOPPED
from stretto.live.failure_log import AGAIN_S, FailureLog
from stretto.live.losses import NO_WORKER_LEFT, POISON
from tests.live.conftest import Staging
from tests.live.scripted import Stage, serving


def test_a_flood_of_failures_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(lambda: 0.0)
    for number in range(1000):
        failures.add("app/v", f"no room at 0x{number:x}, row {number}")
    failures.add("app/w", "no room at 0x1, row 1")
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "app/v failed on 1 queries",
        "app/v has failed on 10 queries by now",
        "app/v has failed on 100 queries by now",
        "app/v has failed on 1000 queries by now",
        "app/w failed on 1 queries",
    ]


def test_every_failure_has_a_line_of_its_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The second to the ninth used to have none at all."""
    now_s, told_s = 0.0, 0.0
    failures = FailureLog(lambda: now_s)
    for _ in range(40):
        before = len(caplog.messages)
        failures.add("app", "the application is no longer served")
        told_s = now_s if len(caplog.messages) > before else told_s
        assert now_s - told_s < AGAIN_S
        now_s += 25.0
    assert len(caplog.messages) < 20


def no_worker_is_left(made: Stage) -> None:
    made.starts = False
    made.lose(0)
    made.wait(1100)


def every_worker_is_lost(made: Stage) -> None:
    made.lose(0)
    made.wait(130)
    made.lose(0)


def the_server_stops(made: Stage) -> None:
    made.engine.end_all()


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(no_worker_is_left, NO_WORKER_LEFT), (every_worker_is_lost, POISON), (the_server_stops, STOPPED)],
)
def test_queries_that_no_model_failed_on_are_in_the_log(
    stage: Staging, caplog: pytest.LogCaptureFixture, happens: Callable[[Stage], None], reason: str
) -> None:
    """They used to be told to their clients alone, as 500."""
    made = stage(serving(crew=1))
    request = made.request(slack_ms=1000)
    happens(made)
    assert request.outcome is Outcome.FAILED
    assert [m for m in caplog.messages if "failed on" in m] == [f"{request.application} failed on 1 queries: {reason}"]
