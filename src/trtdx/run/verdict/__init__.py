"""From what was seen to one verdict: the culprit's cause first, its victims folded under it."""
