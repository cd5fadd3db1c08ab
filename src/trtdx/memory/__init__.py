"""What uses the memory of a GPU, what fits, and what to change."""
