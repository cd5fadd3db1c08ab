"""`trtdx build` and its subcommands: the arguments, and nothing of the work."""
