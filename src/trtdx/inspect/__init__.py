"""Artifacts to facts, facts to what disagrees."""
