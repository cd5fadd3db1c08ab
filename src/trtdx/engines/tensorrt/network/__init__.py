"""Network definitions: from ONNX or from code, as records with places that taps can name."""
