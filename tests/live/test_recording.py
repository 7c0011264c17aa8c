"""The files of a recording: bad disks, parts, what is there already. Queries never notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stretto.core import journal
from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate
from stretto.live.recorder import Journal, recording
from stretto.live.recording import RecordOptions
from stretto.live.spool import Spool
from stretto.sim.replay import replay
from stretto.twin.measure import setting_from_log
from tests.live.conftest import Staging
from tests.live.scripted import Stage, plan_for, serving, variant

FAST, GOOD = variant("fast", 0.6), variant("good", 0.8, 2, 10)
PATIENCE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def ask(made: Stage, count: int) -> None:
    for _ in range(count):
        made.request(1, 400.0)
        made.finish_all()


def all_ended(made: Stage) -> bool:
    return all(request.outcome is not None for request in made.requests)


def is_stopped(into: Journal) -> bool:
    assert into.state is not None
    return not into.state.is_active


# -- disks that are full, slow or gone ---------------------------------------------------------------------------------


def test_a_full_disk_stops_the_recording_once_and_no_query(stage: Staging, caplog: pytest.LogCaptureFixture) -> None:
    """The buffered file used to raise out of a submit, at whichever query filled the buffer, and again at the end."""
    with recording(Path("/dev/full"), RecordOptions(flush_s=0.01)) as into:
        made = stage(serving(FAST), journal=into)
        until(lambda: is_stopped(into))
        ask(made, 20)
        assert all_ended(made) and len(made.requests) == 20
    told = [record.message for record in caplog.records if "recording" in record.message]
    assert len(told) == 1 and "No space left" in told[0]
    assert into.state is not None and into.state.written_bytes == 0


def test_a_disk_that_hangs_stops_the_recording_and_no_query(
    stage: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe that nobody reads blocks whoever writes: for ever, as a dead network disk would."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with recording(pipe, RecordOptions(buffer_bytes=20_000, flush_s=0.01)) as into:
            made = stage(serving(FAST), journal=into)
            while not is_stopped(into):
                ask(made, 50)
            assert all_ended(made)
            # The disk is back, so that the end need not wait for it.
            drain = [sys.executable, "-c", "import os\nwhile os.read(0, 65536): pass"]
            os.set_blocking(reader, True)
            drained = subprocess.Popen(drain, stdin=reader)
    finally:
        os.close(reader)
    assert drained.wait(PATIENCE_S) == 0
    told = [record.message for record in caplog.records if "recording" in record.message]
    assert len(told) == 1 and "slower" in told[0]


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (60_010, 60_010))
from stretto.live.recorder import recording
from stretto.live.recording import RecordOptions
from tests.live.scripted import Stage, plan_for, serving, variant
served = serving(variant("fast", 0.6))
with recording(Path(sys.argv[1]), RecordOptions(flush_s=0.01)) as into:
    made = Stage(served, plan_for(served), journal=into)
    while into.state.is_active:
        made.request(1, 400.0)
        made.finish_all()
    made.close()
assert all(request.outcome is not None for request in made.requests)
print(len(made.requests))
"""


def test_a_disk_that_fills_leaves_a_torn_line_and_what_came_before_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size == 60_010 and not path.read_bytes().endswith(b"\n")
    assert "recording into events.jsonl has stopped, and serving goes on without: File too large" in done.stderr
    result = replay(path)
    assert result.is_identical and 0 < result.submitted < int(done.stdout)
    assert setting_from_log(path).arrivals["app"].rate > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_small_disk_of_its_own(stage: Staging, small_disk: Path) -> None:
    path = small_disk / "events.jsonl"
    with recording(path, RecordOptions(flush_s=0.01)) as into:
        made = stage(serving(FAST), journal=into)
        while not is_stopped(into):
            ask(made, 50)
        assert all_ended(made)
    assert replay(path).is_identical


def test_an_event_that_cannot_be_written_harms_nobody(
    stage: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A number beyond 64 bits is no JSON here; the dispatcher may be told of it all the same."""
    with recording(tmp_path / "events.jsonl") as into:
        into.collected = lambda: [2**70]
        made = stage(serving(FAST), journal=into)
        into.began("priced", {"margin": 2**70}, False)
        ask(made, 3)
        assert is_stopped(into) and all_ended(made)
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert replay(tmp_path / "events.jsonl").is_identical


def test_what_happened_is_on_disk_soon(stage: Staging, tmp_path: Path) -> None:
    """It used to wait in a buffer of a megabyte: of a quiet server that was killed, nothing was left."""
    path = tmp_path / "events.jsonl"
    with recording(path, RecordOptions(flush_s=0.01)) as into:
        made = stage(serving(FAST), journal=into)
        ask(made, 3)
        until(lambda: path.read_bytes().count(b'["finished"') == 3)


# -- parts -------------------------------------------------------------------------------------------------------------


@contextmanager
def in_parts(path: Path, **options: int) -> Iterator[Journal]:
    with recording(path, RecordOptions(part_bytes=8_000, flush_s=0.005, **options)) as into:
        yield into


def test_parts_are_read_as_one(stage: Staging, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with in_parts(path) as into:
        made = stage(serving(FAST), journal=into)
        while not (tmp_path / "events.4.jsonl").exists():
            ask(made, 20)
    parts = list(journal.parts_of(path))
    assert len(parts) >= 4 and all(part.stat().st_size <= 8_000 for part in parts[1:])
    result = replay(path)
    assert result.is_identical and result.submitted == len(made.requests)
    assert len(setting_from_log(path).arrivals["app"].requests) == len(made.requests)
    parts[-1].write_bytes(parts[-1].read_bytes()[:-3])
    assert replay(path).is_identical
    for wrong, words in ((parts[1], "not the first part"), (tmp_path / "events.7.jsonl", "cannot be read")):
        with pytest.raises(StrettoError, match=words):
            replay(wrong)
    whole = parts[1].read_bytes()
    parts[1].write_bytes(whole[:-3])
    with pytest.raises(StrettoError, match=r"events\.2\.jsonl:\d+: is cut off"):
        replay(path)
    with in_parts(tmp_path / "other.jsonl") as into:
        ask(stage(serving(FAST), journal=into), 200)
    parts[1].write_bytes((tmp_path / "other.2.jsonl").read_bytes())
    with pytest.raises(StrettoError, match=r"events\.2\.jsonl .*another recording"):
        replay(path)


def test_all_parts_together_are_bounded(stage: Staging, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events.jsonl"
    with in_parts(path, total_bytes=40_000) as into:
        made = stage(serving(FAST), journal=into)
        while not is_stopped(into):
            ask(made, 20)
    assert sum(part.stat().st_size for part in journal.parts_of(path)) <= 40_000
    assert sum("0.04 MB" in record.message for record in caplog.records) == 1
    assert replay(path).is_identical and all_ended(made)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """An earlier recording used to be gone the moment the server started."""
    path = tmp_path / "events.jsonl"
    for name in ("events.jsonl", "events.2.jsonl", "events.3.jsonl"):
        (tmp_path / name).write_text("precious")
    with pytest.raises(StrettoError, match=r"events\.jsonl is there already.*--record-overwrite"), recording(path):
        pass
    assert path.read_text() == "precious"
    path.unlink()
    with pytest.raises(StrettoError, match=r"events\.2\.jsonl is there already"), recording(path):
        pass
    path.write_text("precious")
    with recording(path, RecordOptions(overwrite=True)) as into:
        into.began("priced", {}, False)
    assert json.loads(path.read_text().splitlines()[1])[0] == journal.SESSION
    assert [part.name for part in journal.parts_of(path)] == ["events.jsonl"]  # none of an earlier one is left
    with pytest.raises(StrettoError, match="cannot be written"), recording(tmp_path):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StrettoError, match="cannot be written"), recording(tmp_path / "pipe"):
        pass  # it used to wait for somebody who reads


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_written_once(stage: Staging, tmp_path: Path) -> None:
    """Plans are most of a recording: each was written where it was planned, and again where it was adopted."""
    path = tmp_path / "events.jsonl"
    served = serving(FAST, GOOD)
    plans = [plan_for(served), plan_for(served, release=Accumulate(2, 3_000_000))]
    with recording(path) as into:
        made = stage(served, plans[0], journal=into)
        for step in range(6):
            made.adopt(plan_for(served) if step % 2 else plans[1])  # equal, not the same
            ask(made, 1)
    kinds = [json.loads(text)[0] for text in path.read_text().splitlines()]
    assert kinds.count(journal.PLAN) == 2 and kinds.count(journal.ADOPT) >= 6
    assert replay(path).is_identical


def test_plans_that_come_back_after_many_others_are_found(stage: Staging, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    served = serving(FAST)
    with recording(path) as into:
        made = stage(served, journal=into)
        for step in range(300):
            made.adopt(plan_for(served, release=Accumulate(2, 1_000 + step)))
            ask(made, step % 100 == 0)
        made.adopt(plan_for(served, release=Accumulate(2, 1_000)))
        made.adopt(plan_for(served, release=Accumulate(2, 1_299)))
    numbers = [json.loads(text)[1] for text in path.read_text().splitlines() if text.startswith('["plan"')]
    assert len(numbers) == 302 and max(numbers) == 255  # a reader need not remember more than that
    assert replay(path).is_identical


# -- the buffer --------------------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_gives_up_on_a_disk_that_hangs() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, True)

    def write(lines: bytearray) -> None:
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(writing, rest) :]

    spool = Spool("test", write, most_bytes=1_000_000)
    line = b"x" * 999 + b"\n"
    taken = 0
    while spool.append(line):
        taken += 1
    assert 1_000 <= taken <= 1_000 + (1 << 20) // 1_000  # and what the pipe holds
    assert not spool.flush(0.01) and not spool.close(0.01)
    found = 0
    while found < taken * 1_000:
        found += len(os.read(reading, 1 << 16))
    assert spool.close(PATIENCE_S)
    os.close(reading)
    os.close(writing)
