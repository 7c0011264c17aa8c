"""What is measured again is chosen by the machine alone: by what its host took away, and by how fast it was."""

from __future__ import annotations

import time

import pytest

import benchmarks.quiet as module
from benchmarks.quiet import SLOWED, Pace, when_quiet


def test_a_try_on_a_slow_machine_is_measured_again_and_the_quickest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "stolen_s", lambda: 0.0)
    monkeypatch.setattr(module, "wait_for_quiet", lambda: None)
    for lost, wanted in (([0.3, 2 * SLOWED, 0.2 * SLOWED, 0.0], 2), ([0.3, 0.2, 0.25, 0.4], 1), ([-0.5], 0)):
        left = iter(enumerate(lost))
        (place, _), stolen, tries = when_quiet(lambda left=left: next(left), 4, slowed=lambda measured: measured[1])
        assert (place, stolen) == (wanted, 0.0)
        assert tries == (wanted + 1 if lost[wanted] <= SLOWED else 4)


def test_the_pace_is_that_of_a_piece_of_work() -> None:
    with Pace() as pace:
        time.sleep(1.2)
    began_s = time.thread_time()
    module.hashlib.sha256(module.PIECE).digest()
    assert 0 < pace.piece_s < 50 * (time.thread_time() - began_s)
