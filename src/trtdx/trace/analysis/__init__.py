"""From spans to a ledger of time: every instant of every rank belongs to one thing."""
