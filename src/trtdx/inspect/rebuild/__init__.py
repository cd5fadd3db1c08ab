"""Does an engine have to be rebuilt, and with which command."""
