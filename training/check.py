"""Prints every application of a zoo and fails where a ladder's accuracy or latency does not rise from rung to rung.

    python -m training.check stretto/zoo

Latency is the processor time of one call of ONNX Runtime on one thread (the median of a short run), which a busy
neighbour disturbs less than wall time; accuracy is the test split's, from metrics.json, with the accuracy on
the bundled sample beside it as a check of the file itself. Needs numpy and onnxruntime only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import onnxruntime

BATCHES = (1, 8)
NO_LADDER = ("activity_specialists",)  # whose variants know different classes


def main() -> None:
    """One table for each application, the fastest variant first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5, help="measured for each variant and batch size")
    options = parser.parse_args()
    fallen = []
    for folder in sorted(path.parent for path in options.zoo.glob("*/variants")):
        rows = sorted(_row(variant, options.seconds) for variant in (folder / "variants").iterdir())
        print(f"\n{folder.name:20s} {'b1 ms':>8s} {'b8 ms':>8s} {'test':>7s} {'valid.':>7s} {'sample':>7s} {'MB':>6s}")
        for *latency, accuracy, validation, on_sample, size, name in rows:
            times = " ".join(f"{value:8.3f}" for value in latency)
            print(f"  {name:18s} {times} {accuracy:7.4f} {validation:7.4f} {on_sample:7.4f} {size / 1e6:6.2f}")
        for lower, upper in () if folder.name in NO_LADDER else itertools.pairwise(rows):
            if not all(low < high for low, high in zip(lower[:4], upper[:4], strict=True)):
                fallen.append(f"{folder.name}: {upper[-1]} does not rise over {lower[-1]}")
    if fallen:
        raise SystemExit("\n".join(fallen))


def _row(variant: Path, seconds: float) -> tuple[float, float, float, float, float, int, str]:
    metrics = json.loads((variant / "metrics.json").read_text())
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    model = variant / "model.onnx"
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    inputs, labels = _sample(variant)
    answers = np.concatenate([session.run(None, {"input": part})[0] for part in np.array_split(inputs, 10)])
    single, eight = (_milliseconds(session, inputs[:batch], seconds) for batch in BATCHES)
    on_sample = float((answers.argmax(1) == labels).mean())
    return (
        *(single, eight, metrics["accuracy"], metrics["validation_accuracy"]),
        *(on_sample, model.stat().st_size, variant.name),
    )


def _sample(variant: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(variant.parent.parent / "sample.npz") as arrays:
        own = f"inputs_{variant.name}"
        inputs = arrays[own if own in arrays else "inputs"]
        labels = arrays["labels"]
    return (inputs / np.float32(255) if inputs.dtype == np.uint8 else inputs), labels


def _milliseconds(session: onnxruntime.InferenceSession, inputs: np.ndarray, seconds: float) -> float:
    times: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 12:
        started = time.thread_time_ns()
        session.run(None, {"input": inputs})
        times.append(time.thread_time_ns() - started)
    return float(np.median(times[len(times) // 10 :])) / 1e6


if __name__ == "__main__":
    main()
