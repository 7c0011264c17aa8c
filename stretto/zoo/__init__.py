"""The bundled models: for each application its variants (ONNX and metrics), labels and a labelled sample; no code."""
