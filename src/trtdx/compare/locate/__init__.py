"""Where two runs first go wrong."""
