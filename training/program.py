"""Writes a network as an exported program (.pt2) with a free batch, and refuses it unless it answers as the network."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from stretto.backends.program import read_program

MAX_BATCH = 1024
TOLERANCE = 1e-4  # largest difference of a probability
BATCHES = (1, 3, 8)


def write_program(network: nn.Module, samples: Tensor, path: Path) -> None:
    """`samples` are float32 inputs of the network, at least the largest of BATCHES."""
    network = network.float().cpu().eval()
    samples = samples.float().cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
        program = torch.export.export(network, (samples[:2].clone(),), dynamic_shapes=({0: batch},))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.export.save(program, path)
    written = read_program(path).module(check_guards=False)  # as a worker reads it
    with torch.no_grad():
        for size in BATCHES:
            difference = float((written(samples[:size]) - network(samples[:size])).abs().max())
            if not difference <= TOLERANCE:
                raise RuntimeError(f"{path.parent.name}: the exported program differs by {difference:.2e}")
