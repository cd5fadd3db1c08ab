"""What is wrong with a build tree that no plan describes, and the smallest clean-up that mends it."""
