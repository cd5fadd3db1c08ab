"""Builds that can be trusted: plans, what is stale, clean rebuilds, manifests, and trees that no plan describes."""
