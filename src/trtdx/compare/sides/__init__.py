"""The two sides of a comparison: captures, dumps, models, Python values."""
