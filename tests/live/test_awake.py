import asyncio
import time

from stretto.live.awake import Awake


def turns_during(awaken: bool) -> int:
    """Turns of a loop in 20 ms, in which a batch of 1 ms begins."""

    async def run() -> int:
        loop, turns, awake = asyncio.get_running_loop(), 0, Awake(asyncio.get_running_loop())
        awake._has_cores = True
        select = loop._selector.select  # type: ignore[attr-defined]

        def counted(timeout: float | None) -> object:
            nonlocal turns
            turns += 1
            return select(timeout)

        loop._selector.select = counted  # type: ignore[attr-defined]
        awake.began(time.monotonic_ns() + (1_000_000 if awaken else 10_000_000))
        await asyncio.sleep(0.02)
        assert not awake._is_looking, "it sleeps again"
        return turns

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(run())


def test_a_loop_looks_for_news_while_a_short_batch_computes_and_sleeps_through_a_long_one() -> None:
    assert max(turns_during(awaken=True) for _ in range(10)) > 20  # others may have the core for some of them
    assert min(turns_during(awaken=False) for _ in range(10)) < 10


def test_after_its_answer_it_looks_for_a_moment_only() -> None:
    async def run() -> float:
        awake = Awake(asyncio.get_running_loop())
        awake._has_cores = True
        awake.ended()
        assert not awake._is_looking, "a batch that was slept through"
        awake.began(time.monotonic_ns() + 1_500_000)
        awake.ended()
        began = time.monotonic()
        while awake._is_looking:
            await asyncio.sleep(0)
        return time.monotonic() - began

    assert min(asyncio.run(run()) for _ in range(20)) < 0.0012, "less than was left until its expected end"


def test_it_stays_awake_for_the_second_of_two_batches() -> None:
    async def run() -> float:
        awake = Awake(asyncio.get_running_loop())
        awake._has_cores = True
        began = time.monotonic()
        for end_ns in (900_000, 1_900_000):
            awake.began(time.monotonic_ns() + end_ns)
        awake.ended()
        while awake._is_looking:
            await asyncio.sleep(0)
        return time.monotonic() - began

    assert asyncio.run(run()) >= 0.0019
