"""What mends an environment: plans that a resolver has proven, locks, container files, a new environment."""
