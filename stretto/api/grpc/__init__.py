"""The gRPC translator: calls of the Open Inference Protocol v2 in, calls of the data plane out. It decides nothing."""
