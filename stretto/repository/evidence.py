"""[evidence] in app.toml: how an application learns a query's likely class ahead, and what its owner expects.

All of it may be left out: with stored evidence beside app.toml the defaults below hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.config.fields import Fields, shown, suggestion
from stretto.core.errors import StrettoError
from stretto.core.evidence import MAX_ALPHA, jeffreys, own_prior, strong, weak
from stretto.repository.files import Place
from stretto.repository.sample import SampleFile
from stretto.repository.tensors import OutputTensor
from stretto.repository.variant import VariantFiles

MODELS = ("neighbours", "variant")
FEATURES = ("raw", "projection", "layer")
INDEXES = ("flat", "hnsw", "ivf")
PRIORS = ("jeffreys", "weak", "strong")
MAX_K = 1000
MAX_DIMENSIONS = 65_536
MAX_LAYER_NAME = 1024
DEFAULT_DIMENSIONS = 32
EVIDENCE_KEYS = (
    *("data", "held_out", "model", "variant", "features", "layer", "dimensions", "index", "k"),
    *("prior", "frequencies", "window_queries", "answers"),
)


@dataclass(frozen=True)
class EvidenceSettings:
    """What app.toml says. None: chosen when the evidence is built. `prior` is α per class, empty for Jeffreys."""

    model: str = "neighbours"
    variant: str | None = None
    features: str = "projection"
    layer: str | None = None
    dimensions: int | None = DEFAULT_DIMENSIONS
    index: str | None = None
    k: int | None = None
    prior: tuple[float, ...] = ()
    data: SampleFile | None = None
    held_out: SampleFile | None = None
    answers: bool = True  # a query may be answered from it (short-circuit)

    def alpha(self, classes: int) -> tuple[float, ...]:
        """α of the Dirichlet prior."""
        return self.prior or tuple(jeffreys(classes).tolist())

    def agrees_with(self, prior: Sequence[float], classes: int, observations: int = 0) -> bool:
        """Whether the likeliest class is the same as with another prior (empty: Jeffreys), where all `observations` are
        of one class (0: they may be of several).
        """
        others = prior or jeffreys(classes).tolist()
        apart = [own - other for own, other in zip(self.alpha(classes), others, strict=True)]
        return max(apart) - min(apart) <= 1e-9 or max(apart) - min(apart) < observations


DEFAULT_EVIDENCE = EvidenceSettings()


def read_settings(
    fields: Fields | None, folder: Place, gives: OutputTensor | None, sample: SampleFile | None
) -> EvidenceSettings:
    """`sample` says what stored whole numbers are divided by, in all of an application's labelled data."""
    if fields is None:
        return DEFAULT_EVIDENCE
    classes = 0 if gives is None else gives.classes
    if gives is not None and not classes:
        fields.fail("evidence is about classes, and the answers of this application have none; leave [evidence] out")
    model = fields.choice("model", MODELS, "neighbours")
    variant = fields.text("variant") if fields.has("variant") else None
    features, layer, dimensions, index = _neighbours(fields, model)
    if variant is None and (model == "variant" or features == "layer"):
        fields.fail('say which variant: variant = "NAME"', "model" if model == "variant" else "features")
    if variant is not None and model != "variant" and features != "layer":
        fields.fail('variant goes with model = "variant" or with features = "layer"; leave it out', "variant")
    divide_by = 1.0 if sample is None else sample.divide_by
    return EvidenceSettings(
        model,
        variant,
        features,
        layer,
        dimensions,
        index,
        fields.optional_integer("k", 1, MAX_K),
        _prior(fields, classes),
        _file(fields, "data", folder, divide_by),
        _file(fields, "held_out", folder, divide_by),
        answers=fields.flag("answers", True),
    )


def check_variant(
    fields: Fields, settings: EvidenceSettings, shape: tuple[int, ...] | None, variants: Sequence[VariantFiles]
) -> None:
    """The variant that evidence asks is one of the application's, and takes queries as clients send them."""
    name = str(settings.variant)
    asked_variant = next((variant for variant in variants if variant.name == name), None)
    if asked_variant is None:
        fields.fail(f"variant is {shown(name)}; {suggestion(name, [variant.name for variant in variants])}", "variant")
    if shape is not None and asked_variant.input_shape != shape:
        fields.fail(
            f"variant {asked_variant.name} takes another input size than clients send; name one that takes it",
            "variant",
        )
    if settings.features == "layer" and asked_variant.backend != "onnx":
        fields.fail(
            f"variant {asked_variant.name} is no ONNX model, and only those have named layers; name one", "variant"
        )


def _neighbours(fields: Fields, model: str) -> tuple[str, str | None, int | None, str | None]:
    """Features, layer, dimensions and index, which only neighbours have."""
    if model == "variant":
        for key in ("data", "held_out", "features", "layer", "dimensions", "index"):
            if fields.has(key):
                fields.fail(f'{key} does not go with model = "variant", which learns nothing; leave it out', key)
        return "raw", None, None, None
    index = fields.choice("index", INDEXES) if fields.has("index") else None
    features = fields.choice("features", FEATURES, "projection")
    layer = fields.text("layer") if fields.has("layer") else None
    if layer is not None and (len(layer) > MAX_LAYER_NAME or not layer.isprintable()):
        fields.fail(f"layer must be printable and at most {MAX_LAYER_NAME} characters long", "layer")
    if (features == "layer") != (layer is not None):
        wrong = "layer" if layer is not None else "features"
        fields.fail('features = "layer" and layer = "NAME" (a tensor of the model) go together', wrong)
    if features == "raw" and fields.has("dimensions"):
        fields.fail(
            'raw features are not projected; leave dimensions out, or take features = "projection"', "dimensions"
        )
    dimensions = fields.optional_integer("dimensions", 1, MAX_DIMENSIONS)
    if dimensions is None and features == "projection":
        dimensions = DEFAULT_DIMENSIONS
    return features, layer, dimensions, index


def _prior(fields: Fields, classes: int) -> tuple[float, ...]:
    """α per class; empty for Jeffreys, and where the number of classes could not be read."""
    is_own = fields.has("prior") and isinstance(fields.table["prior"], list)
    prior = "own" if is_own else fields.choice("prior", PRIORS, "jeffreys")
    for key, goes_with in (("frequencies", ("weak", "strong")), ("window_queries", ("strong",))):
        if fields.has(key) != (prior in goes_with):
            wrong = "leave it out" if fields.has(key) else "add it"
            fields.fail(f"{key} goes with prior = {' or '.join(map(shown, goes_with))}; {wrong}", _there(fields, key))
    if prior == "jeffreys":
        return ()
    if prior == "own":
        return _per_class(fields, "prior", classes)
    frequencies = _per_class(fields, "frequencies", classes)
    if prior == "weak":
        return tuple(weak(frequencies).tolist())
    return tuple(strong(frequencies, fields.number("window_queries", 0, MAX_ALPHA, above=True)).tolist())


def _there(fields: Fields, key: str) -> str:
    return key if key in fields.table else "prior"


def _per_class(fields: Fields, key: str, classes: int) -> tuple[float, ...]:
    numbers = fields.numbers(key, 0, MAX_ALPHA)
    if classes and len(numbers) != classes:
        fields.fail(f"{key} has {len(numbers)} numbers for {classes} classes; give one for each", key)
    try:
        own_prior(numbers)
    except StrettoError as error:
        fields.fail(f"{key}: {error}", key)
    return numbers


def _file(fields: Fields, key: str, folder: Place, divide_by: float) -> SampleFile | None:
    """A file that is not there is a matter for whoever builds: what was built from it may be served without it."""
    return SampleFile(folder.named(fields, key), divide_by, whole_only=True) if fields.has(key) else None
