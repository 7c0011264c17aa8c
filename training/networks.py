"""The zoo's networks: linear, perceptrons, plain and residual convolutional networks on images and on series.

Every layer that is normalised in training folds into one affine layer for inference (see `fold`), and the input is only
scaled, never shifted, so that the scale too folds into the first layer and zero padding keeps its meaning.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval


class Normalised(nn.Module):
    """An affine layer and its batch normalisation."""

    def __init__(self, layer: nn.Module, norm: nn.Module):
        super().__init__()
        self.layer = layer
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))

    def folded(self) -> nn.Module:
        """One affine layer that computes the same in inference."""
        fuse = fuse_linear_bn_eval if isinstance(self.layer, nn.Linear) else fuse_conv_bn_eval
        return fuse(self.layer, self.norm)


def dense(inputs: int, outputs: int) -> Normalised:
    """A fully connected layer with batch normalisation."""
    return Normalised(nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs))


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, dimensions: int = 2) -> Normalised:
    """A convolution with batch normalisation, over an image (2) or a series (1)."""
    layer, norm = (nn.Conv2d, nn.BatchNorm2d) if dimensions == 2 else (nn.Conv1d, nn.BatchNorm1d)
    return Normalised(layer(inputs, outputs, size, stride, padding=size // 2, bias=False), norm(outputs))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, size: int, dimensions: int):
        super().__init__()
        self.first = convolution(inputs, outputs, size, stride, dimensions)
        self.second = convolution(outputs, outputs, size, 1, dimensions)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride, dimensions)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class Channels(nn.Module):
    """The channels of one sensor, from `first` up to `end`."""

    def __init__(self, first: int, end: int):
        super().__init__()
        self.first = first
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.first : self.end]


class Statistics(nn.Module):
    """Mean, standard deviation, minimum and maximum of each channel of a series."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(2)
        variance = (x * x).mean(2) - mean * mean
        return torch.cat([mean, torch.sqrt(variance.clamp(min=1e-6)), x.amin(2), x.amax(2)], 1)


def linear(inputs: int, classes: int) -> nn.Sequential:
    """Softmax regression on the raw input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def perceptron(inputs: int, hidden: Sequence[int], classes: int, dropout: float = 0.0) -> nn.Sequential:
    """Fully connected layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [dense(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def on_statistics(channels: int, hidden: Sequence[int], classes: int) -> nn.Sequential:
    """A perceptron (or, with no hidden layer, softmax regression) on the statistics of a series."""
    return nn.Sequential(Statistics(), *perceptron(4 * channels, hidden, classes))


def plain(
    channels: int,
    widths: Sequence[int],
    strides: Sequence[int],
    classes: int,
    *,
    size: int = 3,
    flat: int = 0,
    dropout: float = 0.0,
    dimensions: int = 2,
) -> nn.Sequential:
    """Convolutions one after the other; `flat` is what is left of the positions, read by place (0: averaged)."""
    layers: list[nn.Module] = []
    for width, stride in zip(widths, strides, strict=True):
        layers += [convolution(channels, width, size, stride, dimensions), nn.ReLU()]
        channels = width
    if not flat:
        layers.append(nn.AdaptiveAvgPool2d(1) if dimensions == 2 else nn.AdaptiveAvgPool1d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(dropout), nn.Linear(channels * max(flat, 1), classes))


def residual(
    channels: int,
    widths: Sequence[int],
    blocks: int,
    classes: int,
    *,
    size: int = 3,
    stem_stride: int = 1,
    dropout: float = 0.0,
    dimensions: int = 2,
) -> nn.Sequential:
    """A residual network: one stage of `blocks` for each width, each stage but the first halving the resolution."""
    layers: list[nn.Module] = [convolution(channels, widths[0], size, stem_stride, dimensions), nn.ReLU()]
    inputs = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(inputs, width, 2 if stage and not block else 1, size, dimensions))
            inputs = width
    pool = nn.AdaptiveAvgPool2d(1) if dimensions == 2 else nn.AdaptiveAvgPool1d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs, classes))


def of_sensor(first: int, end: int, network: nn.Sequential) -> nn.Sequential:
    """A network that reads these channels of the input alone."""
    return nn.Sequential(Channels(first, end), *network)


class Scaled(nn.Module):
    """A network behind the division of its input by the training set's spread, per channel."""

    def __init__(self, network: nn.Sequential, scale: Tensor):
        super().__init__()
        self.network = network
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x * self.scale)


class Classifier(nn.Module):
    """What is exported: raw input to probabilities."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.network(x), 1)


def fold(scaled: Scaled) -> nn.Module:
    """A copy for inference: normalisations folded into their layers, the input's scale into the first layer."""
    folded = copy.deepcopy(scaled).float().cpu().eval()
    _fold_inside(folded)
    # A scale passes through the mean of an area, and through a choice of channels.
    passed = nn.Flatten | nn.AvgPool2d | Channels
    first = next((layer for layer in folded.network if not isinstance(layer, passed)), None)
    scale = folded.scale.flatten()
    if isinstance(folded.network[0], Channels):
        scale = scale[folded.network[0].first : folded.network[0].end]
    with torch.no_grad():
        if isinstance(first, nn.Conv2d | nn.Conv1d):
            first.weight.mul_(scale.view(1, -1, *[1] * (first.weight.dim() - 2)))
        elif isinstance(first, nn.Linear) and scale.numel() == 1:
            first.weight.mul_(scale)
        elif isinstance(first, Statistics):
            linear_layer = folded.network[2]  # after Statistics and Flatten; every statistic scales with its channel
            linear_layer.weight.mul_(scale.repeat(4))
        else:
            raise TypeError(f"the input's scale cannot be folded into {type(first).__name__}")
    return folded.network


def _fold_inside(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, Normalised):
            setattr(module, name, child.folded())
        else:
            _fold_inside(child)
