"""What TensorRT writes: headers of plans, verbose build logs, and the tensors, profiles and kernels they tell of."""
