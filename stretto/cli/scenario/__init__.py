"""Scenarios: TOML files that say what to simulate. docs/scenario.md has every key; mistakes come with their line."""
