"""The roles on many machines: scheduler, workers and front ends that speak over ZeroMQ (extra: cluster)."""
