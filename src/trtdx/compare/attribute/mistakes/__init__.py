"""Mistakes that can be tried out in a module, by the part of the model they are in."""
