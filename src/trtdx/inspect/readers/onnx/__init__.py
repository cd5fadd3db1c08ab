"""ONNX files, and optimization profiles written for them."""
