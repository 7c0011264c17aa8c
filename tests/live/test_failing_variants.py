"""Variants that raise, always or by chance, or answer what is no answer, in real worker processes: the other variant of
their application answers, and they are served again when they are mended.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.outcome import Outcome
from stretto.live import quarantine
from stretto.live.offer import NothingToServe
from stretto.live.quarantine import Fault, label_of
from stretto.live.requests import Request
from stretto.live.service import Service
from tests.live.bad_repository import add
from tests.live.real import Awaited, until, within
from tests.live.test_bad_models import ask, modules, service_of, set_aside

__all__ = ["modules"]
LIMIT_S = 90
RATE = 40.0
SLACK_MS = 800.0


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models fail while this file is there."""
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("STRETTO_TEST_MARKS", str(marks))
    return marks / "broken"


async def load(service: Service, seconds: float, seed: int) -> list[Request]:
    """Poisson arrivals; those of the first second are left out."""
    dice = np.random.default_rng(seed)
    asked: list[tuple[float, Awaited]] = []
    loop = asyncio.get_running_loop()
    start = due = loop.time()
    while due < start + seconds:
        await asyncio.sleep(max(0.0, due - loop.time()))
        asked.append((due - start, ask(service, "app", 1.0, slack_ms=SLACK_MS)))
        due += dice.exponential(1 / RATE)
    return [await each for since, each in asked if since >= 1.0]


def aside(service: Service, model: str) -> quarantine.Entry | None:
    entries = service.offer.quarantine.entries.items()
    return next((entry for key, entry in entries if label_of(key) == f"app/{model.lower()}"), None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("raise_while_broken", "RuntimeError: it is broken"),
        ("raise_by_chance", "RuntimeError: it is broken now and then"),
        ("nan_while_broken", "NaN"),
        ("too_few_rows_while_broken", "shape"),
        ("too_many_columns_while_broken", "shape"),
    ],
)
def test_a_variant_that_fails_beside_a_healthy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Path, model: str, words: str
) -> None:
    """It took its application down: every query failed, and the index said that it was ready."""
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 2.0)
    root = tmp_path / "models"
    add(root, "app", "good", model)

    async def work() -> None:
        async with service_of(root) as service:
            assert (await ask(service, "app", 1.0)).variants == [model]
            broken.touch()
            requests = await load(service, 3.0, seed=7)
            ends = [request.outcome for request in requests]
            assert ends.count(Outcome.ON_TIME) >= 0.99 * len(ends), ends
            await until(lambda: bool(service.offer.quarantine.times[f"app/{model}"]))
            broken.touch()
            await until(lambda: (entry := aside(service, model)) is not None and entry.fault is Fault.RAISED)
            entry = aside(service, model)
            assert entry is not None and words in entry.reason
            assert not service.is_ready("app", model) and service.is_ready("app", "good")
            broken.unlink()
            await until(lambda: service.is_ready("app", model))
            mended = await ask(service, "app", 1.0, pinned=model)
            assert mended.outcome is Outcome.ON_TIME and service.offer.quarantine.entries == {}

    within(LIMIT_S, work)


def test_another_file_in_its_place_is_served_at_once(tmp_path: Path, broken: Path) -> None:
    """Whatever is left of the pause: another file is another model."""
    root = tmp_path / "models"
    add(root, "app", "good", "raise_while_broken")

    async def work() -> None:
        async with service_of(root, reload_s=0.05) as service:
            broken.touch()
            await load(service, 2.0, seed=8)
            await until(lambda: aside(service, "raise_while_broken") is not None)
            variant = root / "app" / "variants" / "raise_while_broken"
            add(tmp_path / "mended", "app", "good", "slow")
            for source in (tmp_path / "mended" / "app" / "variants" / "slow").rglob("*.*"):
                target = variant / source.relative_to(tmp_path / "mended" / "app" / "variants" / "slow")
                target.write_bytes(source.read_bytes())
            await until(lambda: service.is_ready("app", "raise_while_broken"))
            answered = await ask(service, "app", 0.0, pinned="raise_while_broken")
            assert answered.outcome is Outcome.ON_TIME and service.offer.quarantine.entries == {}

    within(LIMIT_S, work)


def test_the_last_variant_of_an_application_is_set_aside_too(tmp_path: Path, broken: Path) -> None:
    """It helps nobody: the application is not ready, and says so. Others are."""
    root = tmp_path / "models"
    add(root, "good", "good")
    add(root, "app", "raise_while_broken")

    async def work() -> None:
        async with service_of(root) as service:
            assert (await ask(service, "app", 1.0)).outcome is Outcome.ON_TIME
            broken.touch()
            while "app" not in set_aside(service):
                if "app" in service.files and service.is_ready("app"):
                    assert (await ask(service, "app", 1.0, slack_ms=1000)).outcome is Outcome.FAILED
                await asyncio.sleep(0.05)
            assert set_aside(service) == {"app": Fault.RAISED}
            assert not service.is_ready("app") and service.is_ready() and service.is_ready("good")
            assert (await ask(service)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_queries_that_no_model_can_answer_take_nobody_down(tmp_path: Path) -> None:
    """A stranger's, say: the model is tried on what it can answer, and stays."""
    root = tmp_path / "models"
    add(root, "app", "raise_at_run")

    async def work() -> None:
        async with service_of(root) as service:
            for _ in range(8):
                assert (await ask(service, "app", 1.0, slack_ms=SLACK_MS)).outcome is Outcome.FAILED
                assert (await ask(service, "app", 0.0, slack_ms=SLACK_MS)).outcome is Outcome.ON_TIME
            for _ in range(8):
                assert (await ask(service, "app", 1.0, slack_ms=SLACK_MS)).outcome is Outcome.FAILED
            await until(lambda: bool(service.admission.trials))
            await until(lambda: not service.admission.trials)
            assert service.offer.quarantine.entries == {} and service.is_ready("app")
            assert (await ask(service, "app", 0.0, slack_ms=SLACK_MS)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_a_model_that_raises_on_zeros_does_not_pass_its_probation(tmp_path: Path, caplog: Any) -> None:
    """It was said to have passed, one line below what it raised."""
    caplog.set_level(logging.INFO)
    root = tmp_path / "models"
    add(root, "app", "good", "raise_on_zeros")

    async def work() -> None:
        async with service_of(root) as service:
            await until(lambda: aside(service, "raise_on_zeros") is not None)
            entry = aside(service, "raise_on_zeros")
            assert entry is not None and entry.fault is Fault.RAISED
            assert "a query of zeros" in entry.reason and "a row of nothing" in entry.reason
            assert "sample.npz" in entry.reason
            assert not service.is_ready("app", "raise_on_zeros") and service.is_ready("app", "good")
        assert "app/raise_on_zeros passed its probation" not in caplog.text

    within(LIMIT_S, work)


def sampled(root: Path, value: float) -> None:
    np.savez(root / "app" / "sample.npz", inputs=np.full((3, 1, 4), value, np.float32), labels=np.zeros(3, np.int64))


def test_a_model_that_refuses_zeros_is_tried_on_the_sample(tmp_path: Path, caplog: Any) -> None:
    root = tmp_path / "models"
    add(root, "app", "raise_on_zeros")
    sampled(root, 1.0)

    async def work() -> None:
        async with service_of(root) as service:
            assert (await ask(service, "app", 1.0)).outcome is Outcome.ON_TIME

    within(LIMIT_S, work)


def test_a_model_that_cannot_answer_the_sample_does_not_pass(tmp_path: Path) -> None:
    """As one that fails on every real query, and none on zeros."""
    root = tmp_path / "models"
    add(root, "app", "raise_at_run")
    sampled(root, 1.0)

    async def work() -> None:
        with pytest.raises(NothingToServe, match="could not answer a query of its application's sample"):
            async with service_of(root):
                pass

    within(LIMIT_S, work)


def test_nan_on_zeros_is_no_failure_where_no_sample_is_known(tmp_path: Path) -> None:
    """As of a model that divides by the length of its input."""
    root = tmp_path / "models"
    add(root, "app", "nan_on_zeros")

    async def work() -> None:
        async with service_of(root) as service:
            assert (await ask(service, "app", 1.0)).outcome is Outcome.ON_TIME
            assert (await ask(service, "app", 0.0)).outcome is Outcome.FAILED

    within(LIMIT_S, work)
