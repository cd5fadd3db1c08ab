"""What each rank holds: weights, activations, buffers, cache."""
