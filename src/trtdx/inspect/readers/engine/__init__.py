"""TensorRT-LLM checkpoints, engines, plans and build logs."""
