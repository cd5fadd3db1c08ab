"""What a test's tensors looked like when they were right, and whether they still do."""
