"""Where two runs first differ by more than precision explains, and which mistake made it."""
