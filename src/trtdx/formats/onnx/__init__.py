"""ONNX graphs: opened without their weights, seen as the modules they were exported from, and edited."""
