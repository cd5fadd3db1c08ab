"""Logs as they come: files, archives and streams, their lines, prefixes and times."""
