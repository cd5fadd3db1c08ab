"""Turns flags, commands and files into one `Setup`."""
