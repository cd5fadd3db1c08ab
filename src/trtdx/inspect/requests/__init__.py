"""Requests, and whether an engine or server takes them."""
