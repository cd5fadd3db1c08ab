"""Plans executed by a GPU."""
