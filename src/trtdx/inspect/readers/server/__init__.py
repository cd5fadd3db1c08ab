"""Option files, command lines and Triton repositories."""
