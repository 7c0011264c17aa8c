"""Trains the zoo's variants: stretto/zoo/APPLICATION/variants/NAME/model.onnx and metrics.json.

    python -m training.train --data CACHE --out stretto/zoo [--only fashion mnist/linear …]

Needs torch, onnx, onnxscript and onnxruntime; a GPU trains everything in minutes. `--hurry 0.01` shortens every
training to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from stretto.repository.profiles import file_sha256
from training.export import export
from training.ladders import LADDERS, Ladder, Rung, task_of
from training.loop import predictions, train
from training.metrics import metrics_of
from training.networks import Scaled
from training.tasks import PAIRS, Task

CHECKED = 512  # test samples on which the exported model must equal the trained one


def main() -> None:
    """Train what was asked for, one variant after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that data.py filled")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(LADDERS), help="applications or APPLICATION/VARIANT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hurry", type=float, default=1.0, help="multiplies every number of epochs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    # Training runs in bfloat16 anyway; what is reported must not depend on the GPU's shortened float32.
    torch.backends.cudnn.allow_tf32 = False
    for application, ladder in LADDERS.items():
        chosen = [
            rung for rung in ladder.rungs if application in options.only or f"{application}/{rung.name}" in options.only
        ]
        for rung in chosen:
            shorter = replace(rung.recipe, epochs=max(1, round(rung.recipe.epochs * options.hurry)))
            _train_rung(application, ladder, replace(rung, recipe=shorter), options)


def _trained(task: Task, rung: Rung, options: argparse.Namespace) -> tuple[Scaled, float]:
    torch.manual_seed(options.seed)
    network, seconds = train(task, Scaled(rung.network(), task.scale), rung.recipe, options.device)
    assert isinstance(network, Scaled)
    return network, seconds


def _train_rung(application: str, ladder: Ladder, rung: Rung, options: argparse.Namespace) -> None:
    task = task_of(ladder, rung, options.data, options.device)
    network, seconds = _trained(task, rung, options)
    folder = options.out / application / "variants" / rung.name
    folded = export(network.cpu(), task.shape, task.test[0][:CHECKED], folder / "model.onnx").to(options.device)
    metrics = metrics_of(folded, task)
    metrics["trained"] = {"epochs": rung.recipe.epochs, "seed": options.seed, "seconds": round(seconds, 1)}
    if ladder.data == "activity":
        metrics["cross_validation"] = _cross_validation(ladder, rung, options)
    metrics["model_sha256"] = file_sha256(folder / "model.onnx")
    (folder / "metrics.json").write_text(json.dumps(metrics) + "\n")
    print(
        f"{application}/{rung.name}: test {metrics['accuracy']:.4f}, validation {metrics['validation_accuracy']:.4f}, "
        f"{metrics['parameters']} parameters, {seconds:.1f} s, {metrics.get('cross_validation', '')}",
        flush=True,
    )


def _cross_validation(ladder: Ladder, rung: Rung, options: argparse.Namespace) -> dict[str, float]:
    """Accuracy on each pair of subjects of a network trained on all the others: two test subjects alone say little.
    A specialist is asked of its own classes.
    """
    result = {}
    for pair in PAIRS:
        task = task_of(ladder, rung, options.data, options.device, test=pair, validation=())
        network, _ = _trained(task, rung, options)
        inputs, labels = task.test
        if rung.only:
            known = torch.isin(labels, torch.tensor(rung.only, device=labels.device))
            inputs, labels = inputs[known], labels[known]
        right = predictions(network, inputs) == labels
        result["+".join(map(str, pair))] = round(float(right.float().mean()), 4)
    return result


if __name__ == "__main__":
    main()
