"""Measures variants: latency per batch size, memory, load time, accuracy and recall. Imports core and backends."""
