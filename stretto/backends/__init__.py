"""What runs a batch: ONNX Runtime, PyTorch, or a Python callable, behind one small interface. Heavy imports wait."""

import os

# ONNX Runtime asks a foreign host where to send what it counts, as soon as it is imported, unless this is set before.
# Here, so that it holds for models in Python that import it themselves, and for processes that are started from here.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
