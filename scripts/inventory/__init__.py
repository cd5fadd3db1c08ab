"""Reads facts (names, values, releases) out of fetched repositories; `scripts/make_inventory.py` is the door."""
