"""The protocol over HTTP/1.1: JSON and binary tensors, on httptools."""
