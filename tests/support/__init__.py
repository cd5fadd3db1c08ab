"""What the tests make their artifacts, models and networks with."""
