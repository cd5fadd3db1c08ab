"""Compiling with the real TensorRT, in a process of its own."""
