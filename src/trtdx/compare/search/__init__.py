"""Bisection, reduction, precision search and baselines: comparisons run many times."""
