"""Inputs and optimization profiles: those that build settings imply, and those meant for an ONNX model."""
