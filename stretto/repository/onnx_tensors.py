"""Which inputs and outputs an ONNX model may have: one rule, for files looked at and for those loaded."""

from __future__ import annotations

# What skl2onnx makes of a classifier unless it is told otherwise: a map from class to probability for each row.
NO_MAPS = 'export it with options={id(model): {"zipmap": False}}, and name its output probabilities in app.toml'


def tensor_problem(what: str, name: str, kind: str, is_number: bool, rank: int | None) -> str | None:
    """What is wrong with an input or output, as the end of a sentence about the model; None where nothing is. `kind` is
    its type in words; a rank of None is not told.
    """
    if not is_number:
        remedy = NO_MAPS if "map" in kind else f"export it with numbers, or without this {what}"
        return f"has {what} {name[:40]}, which is a {kind}; tensors must be numbers: {remedy}"
    if rank == 0:
        return f"has {what} {name[:40]}, which has no batch axis; export it with the batch as first axis"
    return None
