"""A run of a model while it is captured: what goes in, what is kept, and how it goes on."""
