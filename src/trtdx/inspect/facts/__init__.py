"""What readers tell: one vocabulary of facts, and what releases make of them."""
