"""Stretto: machine-learning inference under deadlines. See README.md and docs/design.md."""

__version__ = "0.1.0"
