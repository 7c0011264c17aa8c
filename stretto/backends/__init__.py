"""What runs a batch: ONNX Runtime, PyTorch, or a Python callable, behind one small interface. Heavy imports wait."""
