"""After the fact: the ledger a log states, and why an allocation failed."""
