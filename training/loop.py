"""The training loop: stochastic gradient descent with Nesterov momentum, a cosine schedule and averaged weights.

On a GPU one whole step (draw, forward, backward, update, average) is captured as a CUDA graph and replayed, because the
zoo's small networks would otherwise wait for launches.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.tasks import Task


@dataclass(frozen=True)
class Recipe:
    """How long and how hard. `decay` is L2 on weights (not on biases and normalisation), `rate` the peak step size."""

    epochs: int
    batch: int = 256
    rate: float = 0.1
    decay: float = 5e-4
    smoothing: float = 0.0
    momentum: float = 0.9
    average: float = 0.998
    warm_up: float = 0.05


def train(task: Task, network: nn.Module, recipe: Recipe, device: str) -> tuple[nn.Module, float]:
    """The network with averaged weights, and the seconds it took. The caller sets the seed."""
    started = time.perf_counter()
    network = network.to(device, memory_format=torch.channels_last) if len(task.shape) == 3 else network.to(device)
    network.train()
    averaged = copy.deepcopy(network)
    rows = task.order()[: recipe.batch].clone()
    rate = torch.zeros((), device=device)
    step = _step(task, network, averaged, recipe, rows, rate)
    replay = _captured(step) if device == "cuda" else step
    order = task.order()
    per_epoch = len(order) // recipe.batch
    total = per_epoch * recipe.epochs
    for number in range(total):
        place = number % per_epoch
        if not place:
            order = task.order()
        rows.copy_(order[place * recipe.batch : (place + 1) * recipe.batch])
        rate.fill_(recipe.rate * schedule(number / total, recipe.warm_up))
        replay()
    if device == "cuda":
        torch.cuda.synchronize()
    return averaged.eval(), time.perf_counter() - started


def schedule(done: float, warm_up: float) -> float:
    """The fraction of the peak rate after this fraction of the training: a linear rise, then a cosine to zero."""
    if done < warm_up:
        return done / warm_up
    return 0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up)))


def _step(
    task: Task, network: nn.Module, averaged: nn.Module, recipe: Recipe, rows: Tensor, rate: Tensor
) -> Callable[[], None]:
    parameters = list(network.parameters())
    decayed = [parameter for parameter in parameters if parameter.dim() > 1]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    current = [*parameters, *_statistics(network)]
    average = [*averaged.parameters(), *_statistics(averaged)]
    wide = {id(parameter): number for number, parameter in enumerate(parameters)}

    def step() -> None:
        inputs, labels = task.draw(rows)
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda, cache_enabled=False):
            logits = network(inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=recipe.smoothing)
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            torch._foreach_add_([gradients[wide[id(weight)]] for weight in decayed], decayed, alpha=recipe.decay)
            torch._foreach_mul_(momenta, recipe.momentum)
            torch._foreach_add_(momenta, gradients)
            updates = torch._foreach_add(gradients, momenta, alpha=recipe.momentum)
            torch._foreach_mul_(updates, rate)
            torch._foreach_sub_(parameters, updates)
            torch._foreach_lerp_(average, current, 1 - recipe.average)

    return step


def _statistics(network: nn.Module) -> list[Tensor]:
    """The running means and variances of the normalisations."""
    return [buffer for name, buffer in network.named_buffers() if "running_" in name]


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as one graph launch. It is called while the rate is zero: the warm-up moves no weight."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.no_grad()
def predictions(network: nn.Module, inputs: Tensor, batch: int = 1000) -> Tensor:
    """The class of each input, in full precision."""
    return torch.cat([network(part).argmax(1) for part in inputs.split(batch)])


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts [true class, predicted class]."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes).cpu()
