"""Shapes at run time, from TensorRT-LLM's own tables in a log at level TRACE."""
