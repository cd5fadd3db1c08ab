"""Activation memory asked of TensorRT's own builder."""
