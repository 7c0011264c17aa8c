"""One process of a machine has the turn; when it ends, however it ends, another has it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from stretto.live.cluster.turn import wait_for_turn

ROOT = Path(__file__).parents[3]
HAS_IT = """
import sys, time
from stretto.live.cluster.turn import wait_for_turn
turn = wait_for_turn(sys.argv[1])
print("mine", flush=True)
time.sleep(600)
"""


def test_the_turn_passes_on_when_its_holder_is_killed() -> None:
    name, got = secrets.token_hex(8), threading.Event()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def wait() -> None:
        wait_for_turn(name).close()
        got.set()

    with subprocess.Popen(
        [sys.executable, "-c", HAS_IT, name], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert not got.wait(0.3)
        holder.kill()
        assert got.wait(30)
    waiting.join(30)


def test_turns_of_another_name_are_others() -> None:
    name = secrets.token_hex(8)
    first = wait_for_turn(name)
    wait_for_turn(name + " too").close()
    first.close()
    wait_for_turn(name).close()
