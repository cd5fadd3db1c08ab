"""Kernels by kind of layer, one file a family; `table.py` holds the one table of them."""
