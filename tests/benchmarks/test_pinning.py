"""Which processors benchmarks take: threads of one core count as one, and processes that run are moved whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cluster_front_ends import BESIDE, MOST_FRONT_ENDS, Places, roles_of
from benchmarks.serving import physical_cores, pin

THREADS = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(flush=True)"


def test_threads_of_a_core_are_together(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for cpu in usable:
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0,1\n")
    assert physical_cores(tmp_path) == [usable]
    assert physical_cores(tmp_path / "nothing") == [[cpu] for cpu in usable]


def test_a_process_is_moved_with_all_its_threads() -> None:
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            pin(process.pid, [cpu])
            tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
            assert len(tasks) == 2 and all(os.sched_getaffinity(task) == {cpu} for task in tasks)
        finally:
            process.kill()


def test_every_process_of_a_server_has_its_place() -> None:
    """Roles are told by their command lines, which any process may have."""
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    cores = [[first]] * MOST_FRONT_ENDS + [[last], [first], [last]]
    script = "import subprocess, sys, time; [subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', "
    script += "f'stretto.{name}']) for name in ('api.front_process', 'live.worker_process')]; print(flush=True); "
    script += "time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        end = time.monotonic() + 20
        while not {"front end", "worker"} <= (roles := roles_of(server.pid)).keys() and time.monotonic() < end:
            time.sleep(0.01)  # a process is there a moment before its command line is
        try:
            places = Places(cores)
            assert places.are_enough and places.of_clients == [last] and not Places(cores[:BESIDE]).are_enough
            places.set_apart(server.pid)
            (front,), (worker,) = roles["front end"], roles["worker"]
            assert os.sched_getaffinity(server.pid) == {last}
            assert os.sched_getaffinity(front) == os.sched_getaffinity(worker) == {first}
        finally:
            for pid in [pid for pids in roles.values() for pid in pids]:
                os.kill(pid, 9)
