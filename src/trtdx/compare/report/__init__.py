"""A comparison as a report, a chart, a notebook value."""
