"""What an application's evidence says of its labelled samples: what schedules that look at evidence are judged by."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np

from stretto.core.errors import StrettoError
from stretto.core.evidence import MOST_NUMBERS, MOST_SAMPLES, Said
from stretto.evidence.load import load_evidence
from stretto.evidence.model import Evidence
from stretto.repository.application import ApplicationFiles

log = logging.getLogger("stretto.evidence")


def loaded_evidence(files: Sequence[ApplicationFiles]) -> dict[str, Evidence]:
    """Of those that tell classes; who has none that can be used is left out, and told of."""
    loaded = {each.name: load_evidence(each) for each in files if math.prod(each.output.shape) == each.classes > 0}
    return {name: evidence for name, evidence in loaded.items() if evidence is not None}


def said_of_samples(files: Sequence[ApplicationFiles], evidence: Mapping[str, Evidence]) -> dict[str, Said]:
    said = {}
    for each in files:
        if each.name in evidence and each.sample_file is not None:
            try:
                sample = each.sample()
                witness = evidence[each.name]
                most = min(MOST_SAMPLES, max(1, MOST_NUMBERS // witness.classes))
                some = np.random.default_rng(1).permutation(len(sample.labels))[:most]  # it may be in order
                said[each.name] = Said(witness.posterior(sample.inputs[some]), sample.labels[some], witness.recall)
            except (StrettoError, OSError, RuntimeError, MemoryError) as error:
                log.warning("evidence of %s is not judged by its samples (%s)", each.name, type(error).__name__)
    return said
