"""Files as they are, hostile or broken: bytes in, plain values out, within bounds."""
