"""Latency tables printed in papers, shipped as package data: profiles to start with before measuring your own."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stretto.core.errors import ProfileError
from stretto.core.profile import LatencyProfile

TABLES = ("symphony_1080ti", "symphony_a100")


@dataclass(frozen=True)
class PublishedModel:
    """One row: latency of a batch of b is alpha_ms·b + beta_ms."""

    name: str
    alpha_ms: float
    beta_ms: float
    slo_ms: float

    def profile(self, kind: str = "default", max_batch: int = 256) -> LatencyProfile:
        """The row as a latency profile."""
        return LatencyProfile.linear(self.alpha_ms, self.beta_ms, max_batch, kind)


@cache
def published_table(name: str) -> tuple[PublishedModel, ...]:
    """A table of the Symphony paper: `symphony_1080ti` (table 5) or `symphony_a100` (table 6)."""
    if name not in TABLES:
        raise ProfileError(f"no published table {name[:40]!r}; there are {', '.join(TABLES)}")
    with (resources.files("stretto") / "data" / f"{name}.csv").open(encoding="utf-8") as file:
        return tuple(
            PublishedModel(row["model"], float(row["alpha_ms"]), float(row["beta_ms"]), float(row["slo_ms"]))
            for row in csv.DictReader(file)
        )


def published_model(reference: str) -> PublishedModel:
    """By `table:model`, as in `symphony_1080ti:ResNet50`."""
    table, _, model = reference.partition(":")
    rows = published_table(table)
    for row in rows:
        if row.name == model:
            return row
    raise ProfileError(f"table {table} has no model {model[:40]!r}; it has {', '.join(row.name for row in rows)}")
