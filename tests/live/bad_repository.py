"""Repositories of Python functions, good and bad: an application for each, with profiles as though it was measured."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stretto.repository.profiles import profile_path, write_profile
from tests.repository.build import KIND, stored

APP = """\
slo_ms = {slo_ms}

[input]
shape = [1, 4]

[output]
name = "probabilities"
shape = [3]
"""
VARIANT = """\
backend = "callable"
code = "{code}"
accuracy = {accuracy}
accuracy_source = "literature"
"""


def add(root: Path, application: str, *models: str, slo_ms: float = 2000.0) -> None:
    """An application with these functions of tests/live/bad_models.py, the most accurate last. It is there at once."""
    folder = root.parent / f"{application}-on-its-way"
    folder.mkdir(parents=True)
    (folder / "app.toml").write_text(APP.format(slo_ms=slo_ms))
    for place, model in enumerate(models):
        variant = folder / "variants" / model.lower()
        variant.mkdir(parents=True)
        code = f"tests.live.bad_models:{model}"
        (variant / "variant.toml").write_text(VARIANT.format(code=code, accuracy=0.5 + place / 10))
        sha256 = hashlib.sha256(code.encode()).hexdigest()
        write_profile(profile_path(variant, KIND), stored(sha256, latency_ms=1.0, backend="callable"))
    root.mkdir(exist_ok=True)
    folder.rename(root / application)
