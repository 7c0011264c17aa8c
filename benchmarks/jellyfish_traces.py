"""Networks that vary, for Jellyfish's benchmarks: no trace of the paper's LTE is at hand, so these are drawn.

A bandwidth of LTE moves by a factor of ten within minutes and by a third from one second to the next. Two processes are
like that: a log-normal one whose logarithm is autoregressive, and one that jumps between levels. Those in TUNED were
looked at while the margin and the client's rule were made; those in UNSEEN differ from them in every parameter and
seed, and claims are of these alone. The WiFi trace is cut likewise: its first half is TUNED, its second UNSEEN.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stretto.core.bandwidth import BYTES_PER_MBIT, Bandwidth, in_steps

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LENGTH_S = 300.0
MOST_MBIT = 80.0


def log_normal(
    median_mbit: float, deviation: float, correlation: float, least_mbit: float, seed: int, step_s: float = 1.0
) -> Bandwidth:
    """`deviation` is that of the logarithm; `correlation` from one step to the next."""
    random = np.random.default_rng([seed, 0x17E])
    values = np.empty(round(LENGTH_S / step_s))
    values[0] = random.normal()
    for step in range(1, len(values)):
        values[step] = correlation * values[step - 1] + np.sqrt(1 - correlation**2) * random.normal()
    mbit = np.clip(median_mbit * np.exp(deviation * values), least_mbit, MOST_MBIT)
    return in_steps((mbit * BYTES_PER_MBIT).tolist(), step_s)


def jumps(levels_mbit: tuple[float, ...], stays: float, seed: int) -> Bandwidth:
    """In each second another level with probability 1 − `stays`, and a tenth around it."""
    random = np.random.default_rng([seed, 0xA])
    level, values = 0, []
    for _ in range(round(LENGTH_S)):
        if random.random() > stays:
            level = int(random.integers(len(levels_mbit)))
        values.append(levels_mbit[level] * BYTES_PER_MBIT * random.uniform(0.9, 1.1))
    return in_steps(values)


def wifi(first: int, last: int) -> Bandwidth:
    """Seconds of the trace that the paper replays."""
    mbit = [float(line) for line in (SHARED / "network_wifi.txt").read_text(encoding="ascii").split()]
    return in_steps([value * BYTES_PER_MBIT for value in mbit[first:last]])


TUNED = {
    "tuned: walking": lambda: log_normal(16, 0.5, 0.9, 5, 1),
    "tuned: slow and deep": lambda: log_normal(12, 0.6, 0.95, 5, 3),
    "tuned: steps of 0.25 s": lambda: log_normal(20, 0.3, 0.8, 7, 5, step_s=0.25),
    "tuned: jumps": lambda: jumps((40, 20, 10, 7.5), 0.8, 4),
    "tuned: wifi, first half": lambda: wifi(0, 100),
}
UNSEEN = {
    "lte, tram": lambda: log_normal(18, 0.45, 0.92, 5.5, 101),
    "lte, car": lambda: log_normal(22, 0.6, 0.85, 6, 102),
    "lte, on foot": lambda: log_normal(14, 0.3, 0.96, 5, 103),
    "lte, steps of 0.5 s": lambda: log_normal(17, 0.4, 0.9, 6, 104, step_s=0.5),
    "jumps, rare": lambda: jumps((30, 15, 8), 0.9, 105),
    "jumps, often": lambda: jumps((50, 25, 12, 9), 0.7, 106),
    "wifi, second half": lambda: wifi(100, 200),
}
DRAWN = TUNED | UNSEEN
