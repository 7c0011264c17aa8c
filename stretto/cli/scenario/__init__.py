"""Scenarios: TOML files that say what to simulate, refused with the line that is wrong. docs/scenario.md has every key."""
