"""Which tensor of one side is which of the other."""
