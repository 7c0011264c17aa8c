"""A fuzz that starts from sound requests (HTTP, JSON, tensors, protobuf), for the real parsers and a real server."""
