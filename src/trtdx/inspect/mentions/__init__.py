"""Names of flags, options, variables, scripts that a text mentions, and whether releases have them."""
