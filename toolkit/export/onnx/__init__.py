"""The shared slice as ONNX."""
