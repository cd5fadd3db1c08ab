"""A plan as a report."""
