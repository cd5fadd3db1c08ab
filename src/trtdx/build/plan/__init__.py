"""Plans: what is built from what by which command, and what of it is stale."""
