"""Log text to findings: the root cause first."""
