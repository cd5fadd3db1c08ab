"""What the files of both sides tell about a cause."""
