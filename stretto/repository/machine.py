"""What the present machine is called. A profile holds on one kind of machine; the kind is its name in files and plans.

`cpu-ARCHITECTURE-PROCESSOR-CORESc`, as cpu-aarch64-neoverse-n1-2c, or `gpu-NAME`, as gpu-nvidia-h200. The same machine
always has the same kind: nothing that changes while it runs (load, clock rate, pinning) goes into it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

MAX_PART = 48
MAX_ACCELERATORS = 64
CPU_INFORMATION = Path("/proc/cpuinfo")
GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"  # numbers, or names of GPUs or of parts of them
ORDER, AS_LISTED = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # else CUDA numbers the fastest first

# Linux names no ARM core; these are ARM's own part numbers (implementer 0x41).
ARM_PARTS = {
    0xD03: "Cortex-A53",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD42: "Cortex-A78AE",
    0xD44: "Cortex-X1",
    0xD49: "Neoverse-N2",
    0xD4F: "Neoverse-V2",
    0xD84: "Neoverse-V3",
    0xD8E: "Neoverse-N3",
}
# Words that vendors add and that tell no two processors apart.
NOISE = re.compile(r"\((?:R|TM|C)\)|\bCPU\b|\bprocessor\b|\b\d+-core\b|\bwith radeon.*|@.*", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """What a profile says about where it was measured."""

    processor: str
    cores: int
    system: str
    accelerator: str | None = None

    @property
    def kind(self) -> str:
        """The kind of worker that this machine makes: its accelerator where it has one, else its processor."""
        if self.accelerator is not None:
            return f"gpu-{plain(self.accelerator)}"
        architecture = plain(self.system.rpartition(" ")[2])
        return f"cpu-{architecture}-{plain(self.processor)}-{self.cores}c"


def this_machine(accelerator: str | None = None) -> Machine:
    """The present machine; `accelerator` is the name of the one that the models run on, None for the processor."""
    system = f"{platform.system()} {platform.machine()}".strip()
    return Machine(processor_name(), os.cpu_count() or 1, system, accelerator)


def machine_kind(accelerator: str | None = None) -> str:
    """The kind of the present machine, or of its accelerator of that name."""
    return this_machine(accelerator).kind


def has_accelerator(machine: Machine) -> bool:
    """It is the present one with an accelerator, which the system may not show."""
    return machine.accelerator is not None and replace(machine, accelerator=None) == this_machine()


def present_kinds() -> tuple[str, ...]:
    """Every kind of worker that this machine can offer, its processor first."""
    return tuple(dict.fromkeys((machine_kind(), *(machine_kind(name) for name in accelerators()))))


@cache
def accelerators() -> tuple[str, ...]:
    """The names of the GPUs that the driver knows, without loading any library for them."""
    return tuple(dict.fromkeys(name for name, _ in _gpus()))


def accelerator_count() -> int:
    """How many GPUs this process may use."""
    return len(usable_accelerators())


def usable_accelerators() -> tuple[str | None, ...]:
    """The GPUs that this process may use, by CUDA's numbers; None: one of several kinds, and which is not known.

    CUDA shows those that the environment names (Ray and others that share a machine out write it), up to the first that
    is not there, and numbers them anew.
    """
    gpus, named = _gpus(), os.environ.get(VISIBLE)
    if named is None or not gpus:
        return tuple(_name_of(str(number), gpus) for number in range(len(gpus)))

    def is_there(name: str) -> bool:
        return name not in ("", "-1") and (not name.isdecimal() or int(name) < len(gpus))

    return tuple(_name_of(name, gpus) for name in takewhile(is_there, (part.strip() for part in named.split(","))))


def _name_of(device: str, gpus: Sequence[tuple[str, str]]) -> str | None:
    """`device` is a number, or the beginning of a GPU's own identity."""
    if len({name for name, _ in gpus}) == 1:
        return gpus[0][0]
    if device.isdecimal():
        return gpus[int(device)][0] if os.environ.get(ORDER) == AS_LISTED else None
    return next((name for name, identity in gpus if identity.startswith(device)), None)


def _gpus() -> tuple[tuple[str, str], ...]:
    """Name and identity of each, in the order of the bus."""
    try:
        files = sorted(GPU_INFORMATION.glob("*/information"))[:MAX_ACCELERATORS]
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    except OSError:
        return ()
    gpus = [(_line("Model", text), _line("GPU UUID", text)) for text in texts]
    return tuple((name, identity or "") for name, identity in gpus if name is not None)


def _line(title: str, text: str) -> str | None:
    match = re.search(rf"^{title}:[ \t]*(\S.*?)\s*$", text, re.MULTILINE)
    return None if match is None else match.group(1)


@cache
def processor_name() -> str:
    """As the system tells it; its architecture where it tells nothing."""
    return _from_linux() or _from_macos() or platform.processor() or platform.machine() or "unknown"


def plain(name: str) -> str:
    """In lower case, with hyphens: what may stand in a file name. "Intel(R) Xeon(R) CPU @ 2.9GHz" → intel-xeon."""
    words = re.sub(r"[^a-z0-9]+", "-", NOISE.sub(" ", name).lower()).strip("-")
    return words[:MAX_PART].rstrip("-") or "unknown"


def _from_linux() -> str | None:
    try:
        with CPU_INFORMATION.open(encoding="utf-8", errors="replace") as file:
            text = file.read(65_536)
    except OSError:
        return None
    values = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())
    }
    if values.get("model name"):
        return values["model name"]
    try:
        implementer, part = int(values["cpu implementer"], 16), int(values["cpu part"], 16)
    except (KeyError, ValueError):
        return None
    unnamed = f"arm-{implementer:x}-{part:x}"
    return ARM_PARTS.get(part, unnamed) if implementer == 0x41 else unnamed


def _from_macos() -> str | None:
    if platform.system() != "Darwin":
        return None
    try:
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
