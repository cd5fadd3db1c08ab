"""The supervisor, and what it sees of the job: processes, signals, output, stacks, the agents' records."""
