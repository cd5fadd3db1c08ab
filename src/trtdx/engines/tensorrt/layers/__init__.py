"""Kernels by kind of layer, one file a family; `kernel_registry.py` holds the one table of them."""
