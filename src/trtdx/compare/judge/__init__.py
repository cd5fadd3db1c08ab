"""Whether a difference is more than the candidate's precision explains."""
