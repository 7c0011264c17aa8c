"""Reads what people write, TOML and JSON, field by field; mistakes come with their file and line. Imports core only."""
