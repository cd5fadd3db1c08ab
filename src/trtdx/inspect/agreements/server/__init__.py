"""What must agree about a server: its options, launch, container and Triton repository."""
