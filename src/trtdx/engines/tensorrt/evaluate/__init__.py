"""Network definitions computed on the CPU, layer by layer."""
