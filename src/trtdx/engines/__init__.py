"""Engines: what can compute a model step by step and show every tensor on the way."""
