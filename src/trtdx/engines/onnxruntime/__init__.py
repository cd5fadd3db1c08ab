"""ONNX models on ONNX Runtime, every tensor within reach."""
