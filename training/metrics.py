"""What metrics.json says of a network: measured on the test split, which decided nothing."""

from __future__ import annotations

from typing import Any

from torch import nn

from training.loop import confusion, predictions
from training.tasks import Task


def metrics_of(network: nn.Module, task: Task, batch: int = 1000) -> dict[str, Any]:
    """The network takes the task's inputs, so many at a time, and gives one number per class."""
    inputs, labels = task.test
    counts = confusion(predictions(network, inputs, batch), labels, task.classes)
    held_inputs, held_labels = task.validation
    held = predictions(network, held_inputs, batch) == held_labels
    return {
        "accuracy": round(float(counts.diag().sum() / counts.sum()), 6),
        "validation_accuracy": round(float(held.float().mean()), 6),
        "recall": [round(float(value), 6) for value in counts.diag() / counts.sum(1)],
        "confusion": counts.tolist(),
        "test_samples": len(labels),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "input_shape": list(task.shape),
    }
