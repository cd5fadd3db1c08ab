"""Tensors whatever engine made them: which to look at, their types, statistics, and how far two are apart."""
