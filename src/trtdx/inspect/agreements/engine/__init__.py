"""What must agree about an engine, its plans, its profiles and the machine."""
