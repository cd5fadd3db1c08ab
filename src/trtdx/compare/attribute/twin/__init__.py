"""A torch twin of an ONNX graph or TensorRT network, so that mistakes can be tried out in it."""
