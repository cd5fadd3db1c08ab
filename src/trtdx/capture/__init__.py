"""The tensors of one run: what to look at, what is seen there, and where it is kept."""
