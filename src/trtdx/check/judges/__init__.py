"""What is judged: each module yields causes in the values of their rule pages."""
