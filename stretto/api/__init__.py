"""The Open Inference Protocol v2: one data plane under two thin translators, HTTP and gRPC; management and metrics."""
