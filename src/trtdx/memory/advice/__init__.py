"""What to change, what it costs, and the command that does it."""
