"""The source of a variant's model, from what its repository says of it."""

from __future__ import annotations

from stretto.backends.model import TensorSpec
from stretto.backends.source import ModelSource
from stretto.repository.application import ApplicationFiles
from stretto.repository.variant import VariantFiles


def model_source(
    application: ApplicationFiles, variant: VariantFiles, threads: int = 1, device: str = "cpu"
) -> ModelSource:
    """How a variant of a repository is loaded; its model is held to what the application declares."""
    takes, gives = application.input, application.output
    return ModelSource(
        variant.backend,
        variant.file,
        variant.code,
        threads,
        device,
        variant.precision,
        variant.channels_last,
        takes.divide_by if takes.stays_bytes else None,
        inputs=(TensorSpec(takes.name, takes.dtype, tuple(variant.input_shape)),),
        outputs=(TensorSpec(gives.name, gives.dtype, tuple(gives.shape)),),
        folder=variant.folder,
    )
